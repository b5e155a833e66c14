//! `torch.save` files: a zip of a pickle and of raw storages.
