from llama_cpp import Llama

llm = Llama(model_path="./models/model.gguf", n_ctx=1024, chat_format="chatml")

response = llm.create_chat_completion(
    messages=[
        {"role": "system", "content": "You are an assistant who explains things in one sentence."},
        {"role": "user", "content": "What is a tide?"},
    ],
    max_tokens=20,
)
print(response["choices"][0]["message"]["role"], ":", response["choices"][0]["message"]["content"])
