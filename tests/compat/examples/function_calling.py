import json

from llama_cpp import Llama

llm = Llama(model_path="./models/model.gguf", chat_format="chatml-function-calling", n_ctx=1024)
response = llm.create_chat_completion(
    messages=[{"role": "user", "content": "Is the door open?"}],
    tools=[
        {
            "type": "function",
            "function": {
                "name": "report_door",
                "parameters": {
                    "type": "object",
                    "title": "Door",
                    "properties": {"open": {"title": "Open", "type": "boolean"}},
                    "required": ["open"],
                },
            },
        }
    ],
    tool_choice={"type": "function", "function": {"name": "report_door"}},
    max_tokens=200,
)
choice = response["choices"][0]
call = choice["message"]["tool_calls"][0]
print(choice["finish_reason"], call["type"], call["function"]["name"])
print(type(json.loads(call["function"]["arguments"])["open"]).__name__)
