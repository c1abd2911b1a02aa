import json

from llama_cpp import Llama

llm = Llama(model_path="./models/model.gguf", chat_format="chatml", n_ctx=512)
response = llm.create_chat_completion(
    messages=[
        {"role": "system", "content": "You answer in JSON."},
        {"role": "user", "content": "Who won the match?"},
    ],
    response_format={
        "type": "json_object",
        "schema": {
            "type": "object",
            "properties": {"winner": {"enum": ["red", "blue"]}},
            "required": ["winner"],
        },
    },
    temperature=0.7,
    max_tokens=200,
)
print(json.loads(response["choices"][0]["message"]["content"])["winner"])
