"""Turn nccl-tests logs that no run of `accept` left into a plan and records; judge nothing here."""
