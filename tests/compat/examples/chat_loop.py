from llama_cpp import Llama

llm = Llama("./models/model.gguf", n_ctx=2048, verbose=False)
history = [{"role": "system", "content": "Answer briefly."}]

while True:
    try:
        question = input("you: ")
    except EOFError:
        break
    history.append({"role": "user", "content": question})
    reply = ""
    for chunk in llm.create_chat_completion(messages=history, stream=True, max_tokens=12):
        delta = chunk["choices"][0]["delta"]
        if "role" in delta:
            print(delta["role"], end=": ")
        elif "content" in delta:
            print(delta["content"], end="", flush=True)
            reply += delta["content"]
    print()
    history.append({"role": "assistant", "content": reply})

print(len(history), "messages")
