//! torch.distributed.checkpoint: `.metadata` and `.distcp` files.
