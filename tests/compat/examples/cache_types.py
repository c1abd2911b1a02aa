import llama_cpp

llm = llama_cpp.Llama(
    model_path="./models/model.gguf",
    n_ctx=1024,
    n_batch=256,
    n_threads=2,
    n_gpu_layers=0,
    use_mmap=True,
    use_mlock=False,
    offload_kqv=True,
    flash_attn=True,
    rope_freq_base=0.0,
    last_n_tokens_size=64,
    type_k=llama_cpp.GGML_TYPE_Q8_0,
    type_v=llama_cpp.GGML_TYPE_Q4_0,
)
print(llm.n_ctx(), llm.metadata["general.architecture"])
print(len(llm("hello", max_tokens=4, logit_bias={5: -100})["choices"]))
