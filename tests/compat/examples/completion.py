from llama_cpp import Llama

llm = Llama(model_path="./models/model.gguf", n_ctx=512, verbose=False)

output = llm(
    "Q: Which planet is closest to the sun? A: ",
    max_tokens=24,
    stop=["Q:", "\n\n"],
    echo=True,
)
answer = output["choices"][0]["text"]
print(answer)
print("used", output["usage"]["total_tokens"], "tokens, ended by", output["choices"][0]["finish_reason"])
