/* A stand-in for Pyxis, NVIDIA's plugin of Slurm for containers: the same options, and no images.
 *
 * plugstack.conf gives it a folder of images. An "image" there is a folder that tasks see at /srv. A container
 * has an empty /tmp of its own, as with Enroot, and what --container-mounts names. Each use of an image that is
 * not a file adds a line to the file `pulled` in the folder. A file that --container-save wrote names the image.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

SPANK_PLUGIN(pyxis_standin, 1)

static char image[PATH_MAX], mounts[PATH_MAX], saved[PATH_MAX];
static char *values[] = {image, mounts, saved};

static int keep(int option, const char *value, int remote)
{
    (void)remote;
    if (option >= 0)
        snprintf(values[option], PATH_MAX, "%s", value);
    return 0;
}

static struct spank_option options[] = {
    {"container-image", "IMAGE", "run in a container of this image", 1, 0, keep},
    {"container-mounts", "SRC:DST[,SRC:DST...]", "folders of the host to mount", 1, 1, keep},
    {"container-save", "PATH", "save the container to a file", 1, 2, keep},
    {"no-container-mount-home", NULL, "do not mount the home folder", 0, -1, keep},
    {"container-writable", NULL, "allow writes to the container", 0, -1, keep},
    SPANK_OPTIONS_TABLE_END,
};

int slurm_spank_init(spank_t spank, int count, char **words)
{
    (void)count;
    (void)words;
    for (struct spank_option *option = options; option->name; option++)
        if (spank_option_register(spank, option) != ESPANK_SUCCESS)
            return -1;
    return 0;
}

static int failed(const char *what)
{
    slurm_error("pyxis: %s: %m", what);
    return -1;
}

/* Finds the folder of the image; counts a pull if the image is not a file. */
static int find(const char *images, char *folder)
{
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s", image);
    if (image[0] == '/') {
        FILE *file = fopen(image, "r");
        if (!file || !fgets(name, sizeof name, file))
            return failed(image);
        fclose(file);
    } else {
        char path[2 * PATH_MAX];
        snprintf(path, sizeof path, "%s/pulled", images);
        FILE *file = fopen(path, "a");
        if (!file)
            return failed(path);
        fprintf(file, "%s\n", image);
        fclose(file);
    }
    if (saved[0]) {
        FILE *file = fopen(saved, "w");
        if (!file)
            return failed(saved);
        fputs(name, file);
        fclose(file);
    }
    snprintf(folder, 2 * PATH_MAX, "%s/%s", images, name);
    return 0;
}

int slurm_spank_task_init(spank_t spank, int count, char **words)
{
    char folder[2 * PATH_MAX];
    char *targets[32];
    int sources[32], number = 0;
    (void)spank;
    if (!image[0])
        return 0;
    if (count < 1 || find(words[0], folder))
        return -1;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return failed("namespace");
    for (char *mount = strtok(mounts, ","); mount && number < 32; mount = strtok(NULL, ",")) {
        char *colon = strchr(mount, ':');
        if (!colon)
            return failed(mount);
        *colon = 0;
        /* The mount below may hide it. */
        sources[number] = open_tree(AT_FDCWD, mount, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
        if (sources[number] < 0)
            return failed(mount);
        targets[number++] = colon + 1;
    }
    if (mount(folder, "/srv", NULL, MS_BIND, NULL))
        return failed(folder);
    if (mount("tmpfs", "/tmp", "tmpfs", 0, NULL))
        return failed("/tmp");
    for (int index = 0; index < number; index++)
        if (move_mount(sources[index], "", AT_FDCWD, targets[index], MOVE_MOUNT_F_EMPTY_PATH))
            return failed(targets[index]);
    return 0;
}
