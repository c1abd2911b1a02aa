// Called from C, in the thread that made the native call. Targets are in pyllama_turbo/_callbacks.py; each returns its
// safe value (stop) when the Python side raises, and the exception is raised again after the native call.
extern "Python" bool turbo_py_progress(float, void *);
extern "Python" bool turbo_py_poll(void *);
