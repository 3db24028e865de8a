"""Decide which environment variables all ranks get: an NCCL profile, and the user's settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from accept.config import Machine, Site
from accept.config.fields import check_env
from accept.config.nccl_settings import NCCL_PREFIX, refuse_foreign
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.limits import VARIABLES
from accept.core.serde import Invalid, escaped, known


@dataclass(frozen=True, kw_only=True)
class ProfileChanges:
    """The changes that the NCCL profile of a step makes to the environment variables of a run."""

    env: Annotated[dict[str, str], VARIABLES]
    removed: tuple[str, ...]

    def keeping(self, names: Collection[str]) -> ProfileChanges:
        """Return the changes without those of some variables."""
        return ProfileChanges(
            env={name: value for name, value in self.env.items() if name not in names},
            removed=tuple(name for name in self.removed if name not in names),
        )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The value of an environment variable of all ranks, and who set it."""

    value: str
    #: The origin for people, such as `--nccl`.
    origin: str


def profile_of(machine: Machine, site: Site) -> str:
    """Return the name of the NCCL profile that the site selects. Raises BadInput."""
    name, profiles = site.nccl.profile, machine.nccl.profiles
    if name not in profiles:
        raise BadInput(
            f"{machine.name} has no NCCL profile {escaped(name)!r}",
            code=Code.NCCL_PROFILE_UNKNOWN,
            hint=known(name, profiles),
        )
    return name


def user_env_of(
    site: Site, of_options: Sequence[str], profiles: Collection[str], *, on_pods: bool
) -> dict[str, Setting]:
    """Return the variables that the user sets for all ranks; later sources replace earlier ones.

    From `kubernetes.extraEnv` only the settings of NCCL are taken; the others are for the whole
    pod. Raises BadInput for a name that is not a setting of NCCL, a plugin or a transport.
    """
    extra = site.kubernetes.extra_env if on_pods else {}
    of_nccl = {name: value for name, value in extra.items() if name.startswith(NCCL_PREFIX)}
    origins: dict[str, Mapping[str, str | int]] = {
        "site file, kubernetes.extraEnv": of_nccl,
        "site file, nccl.env": site.nccl.env,
        "--nccl": _parse_nccl(of_options),
    }
    env: dict[str, Setting] = {}
    for origin, given in origins.items():
        refuse_foreign({name: str(value) for name, value in given.items()}, profiles, origin)
        env |= settings_of(given, origin)
    return env


def settings_of(env: Mapping[str, str | int], origin: str) -> dict[str, Setting]:
    """Return variables with who set them."""
    return {name: Setting(value=str(value), origin=origin) for name, value in env.items()}


def _parse_nccl(texts: Sequence[str]) -> dict[str, str]:
    """Parse `--nccl KEY=VALUE`. Raises BadInput."""
    env: dict[str, str | int] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise BadInput(
                f"--nccl {escaped(text)!r} is not a valid setting",
                code=Code.OPTION_NCCL,
                hint="write --nccl KEY=VALUE",
            )
        env[key] = value
    try:
        check_env(env, ())
    except Invalid as error:
        hint = error.hint or "write --nccl KEY=VALUE"
        message = f"--nccl {escaped(str(error.path[0]))}: {error.message}"
        raise BadInput(message, code=error.code, hint=hint) from None
    return {key: str(value) for key, value in env.items()}


def without_ranks_env(site: Site, machine: Machine, env: Mapping[str, Setting]) -> Site:
    """Return the site without variables of `extraEnv` that all ranks get in another way.

    Variables that replace one of the machine's pod settings stay, because the script of the NCCL
    plugin may read them.
    """
    kept = {
        name: value
        for name, value in site.kubernetes.extra_env.items()
        if name not in env or name in machine.kubernetes.env
    }
    return replace(site, kubernetes=replace(site.kubernetes, extra_env=kept))


def env_of(
    machine: Machine, user_env: Mapping[str, Setting], name: str
) -> tuple[dict[str, Setting], str]:
    """Return the settings of an NCCL profile, replaced by the user's, and its plugin's script."""
    profile = machine.nccl.profiles[name]
    # The verdict needs the network that NCCL chose; NCCL logs it only at this level.
    debug_env = (
        {}
        if machine.gpus.count == 0
        else {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}
    )
    env = {
        **settings_of(profile.env, f"profile {name} of {machine.name}"),
        **settings_of(debug_env, "accept: the verdict needs NCCL's log"),
        **user_env,
    }
    return env, machine.nccl.script if profile.script is None else profile.script


def changes_of(run: Mapping[str, Setting], profile: Mapping[str, Setting]) -> ProfileChanges:
    """Return what a profile changes in the settings of a run."""
    values = {name: setting.value for name, setting in run.items()}
    changed = {name: s.value for name, s in profile.items() if values.get(name) != s.value}
    return ProfileChanges(env=changed, removed=tuple(sorted(values.keys() - profile.keys())))
