"""What is kept from call to call."""

MOST_KEPT = 512


class Kept(dict):
    """A dict that forgets what was put in first."""

    def put(self, key, value):
        while len(self) >= MOST_KEPT:
            self.pop(next(iter(self)))
        self[key] = value
        return value
