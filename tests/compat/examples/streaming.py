import json

from llama_cpp import Llama

llm = Llama(model_path="./models/model.gguf")

stream = llm("Write a short poem about rivers:\n", max_tokens=20, temperature=0.7, top_k=30, seed=3, stream=True)
for output in stream:
    print(json.dumps(output, indent=2))
