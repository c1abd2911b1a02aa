from llama_cpp import Llama

llm = Llama(model_path="./models/model.gguf", n_ctx=512)
answer = llm.create_chat_completion_openai_v1(messages=[{"role": "user", "content": "hi"}], max_tokens=4)
print(answer.object, answer.choices[0]["finish_reason"])
for chunk in llm.create_chat_completion_openai_v1(
    messages=[{"role": "user", "content": "hi"}], max_tokens=4, stream=True
):
    print(chunk.object)
    break
