"""A Flower app: clients train the rows their data touches, two servers learn the exact sum."""
