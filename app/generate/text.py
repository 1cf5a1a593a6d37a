"""Text as tokens and back, by the tokenizer that comes with a model."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from engine.errors import CheckpointError

FILE = "tokenizer.json"


class Text:
    """A tokenizer. Raises CheckpointError for a folder that holds none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        try:
            self._tokenizer = Tokenizer.from_file(str(self.path))
        except Exception as error:  # The library raises nothing more precise.
            raise CheckpointError(f"cannot read {self.path}: {error}") from error

    @property
    def vocabulary(self) -> int:
        """Tokens that there are, special ones included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with the special ones that its beginning should have."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        """The text of tokens without the special ones."""
        return str(self._tokenizer.decode(ids))

    def stream(self) -> Stream:
        """A new text that grows by tokens."""
        return Stream(self._tokenizer)


class Stream:
    """Text as far as its tokens settle it: a character may need several of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def add(self, token: int) -> str:
        """The text that a further token settles, perhaps none."""
        return self._stream.step(self._tokenizer, token) or ""
