"""Turn nccl-tests logs from runs without `accept` into a plan and records, without judging."""
