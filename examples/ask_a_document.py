"""Several questions about one text, which is computed once: python examples/ask_a_document.py model.gguf"""

from __future__ import annotations

import sys

from pyllama_turbo import Model

DOCUMENT = "The lighthouse was built in 1871. Its keeper counted ships. In 1902 the lamp was replaced. " * 4
QUESTIONS = ("When was it built?", "What did the keeper count?", "What happened in 1902?")


def main(path: str) -> None:
    """Ask; the last event of every answer says how much of the prompt came from the cache."""
    with Model.open(path) as model, model.context(n_ctx=2048, kv="turbo4_tcq") as ctx:
        for question in QUESTIONS:
            with ctx.generate(f"{DOCUMENT}\nQuestion: {question}\nAnswer:", max_tokens=16, temperature=0) as run:
                text = "".join(event.text for event in run)
            assert run.last is not None
            print(f"{question} {text.strip()!r} ({run.last.n_reused} of {run.last.n_prompt} tokens reused)")


if __name__ == "__main__":
    main(sys.argv[1])
