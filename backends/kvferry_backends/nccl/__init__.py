"""Blocks over NCCL: both ends take part, packed, with a communicator of two ranks per direction."""
