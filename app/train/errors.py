"""What can go wrong in training."""


class TrainError(Exception):
    """Training cannot start or go on; the message says why and what to do."""
