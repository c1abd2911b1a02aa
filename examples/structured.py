"""JSON that follows a schema: python examples/structured.py model.gguf"""

from __future__ import annotations

import json
import sys

from pyllama_turbo import Llama

SCHEMA = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}, "sure": {"type": "boolean"}},
    "required": ["mood", "sure"],
}


def main(path: str) -> None:
    """Ask for an opinion in a fixed shape."""
    with Llama(path, n_ctx=1024, kv="turbo3") as llm:
        answer = llm.create_chat_completion(
            messages=[{"role": "user", "content": "The sun is out and there is cake."}],
            response_format={"type": "json_object", "schema": SCHEMA},
            max_tokens=200,
        )
        print(json.loads(answer["choices"][0]["message"]["content"]))


if __name__ == "__main__":
    main(sys.argv[1])
