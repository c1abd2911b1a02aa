import llama_cpp

llm = llama_cpp.Llama(model_path="./models/model.gguf", embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_MEAN)
one = llm.create_embedding("The cat sat on the mat.")
print(one["object"], one["data"][0]["object"], len(one["data"][0]["embedding"]) == llm.n_embd())

several = llm.create_embedding(["first text", "a second one"])
print(len(several["data"]), several["data"][1]["index"], several["usage"]["total_tokens"] > 0)
print(len(llm.embed("only the vector", normalize=True)) == llm.n_embd())
