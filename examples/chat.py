"""A conversation in the terminal: python examples/chat.py model.gguf"""

from __future__ import annotations

import sys

from pyllama_turbo import Chat, Model


def main(path: str) -> None:
    """Read questions until the end of input; Ctrl-C stops an answer."""
    with Model.open(path) as model, model.context(n_ctx=4096, kv="turbo3") as ctx:
        chat = Chat(ctx, system="Answer briefly.", max_tokens=64)
        for question in map(str.strip, sys.stdin):
            if not question:
                break
            try:
                for event in chat.send(question):
                    print(event.text, end="", flush=True)
            except KeyboardInterrupt:
                print(" (stopped)", end="")
            print()
        print(f"{len(chat.messages)} messages, cache of {ctx.kv.bytes:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
