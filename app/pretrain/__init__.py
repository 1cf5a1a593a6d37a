"""The pretrain command: an encoder of one's own from photographs, without labels."""
