// What the opaque handles of turbo_shim.h are made of. Not installed.
#pragma once

#include "guard.h"
#include "profile_record.h"

#include "llama.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

struct turbo_lora {
    llama_adapter_lora * adapter = nullptr;
};

struct turbo_model {
    llama_model * model = nullptr;
    const llama_vocab * vocab = nullptr;
    int32_t n_vocab = 0;
    std::vector<std::unique_ptr<turbo_lora>> loras;
};

struct turbo_context {
    turbo_model * model = nullptr;
    llama_context * ctx = nullptr;
    llama_batch batch = {};       // n_batch tokens, one sequence each; reused by every decode
    int32_t n_batch = 0;
    int32_t n_ubatch = 0;
    int32_t n_seq_max = 0;
    int32_t n_outputs_max = 0;
    bool output_all = false;      // embedding contexts output every token
    bool single_ubatch = false;   // no causal attention: the batch cannot be split
    int32_t n_outputs = 0;        // rows of the last decode
    std::atomic<int32_t> abort{ 0 };
    bool unstoppable = false;     // the abort flag waits: what runs would leave the cache half changed
    char dead[256] = "";          // why nothing can be computed here any more
    bool unreserved = false;      // the buffers of computations have to be made anew
    bool unsettled = false;       // shifts or copies wait that could not be carried out
    turbo_poll_fn poll = nullptr;
    void * poll_data = nullptr;
    int64_t poll_next_us = 0;
    std::unique_ptr<turbo_profile_record> profile;  // of the last turbo_profile_start
};

// CPU features this build uses (missing_only: and this machine lacks), comma separated.
std::string turbo_cpu_feature_list(bool missing_only);

// Carries out shifts and copies that wait for the next decode: cells tell their result already, tensors do not. Not
// stopped by the abort flag. TURBO_E_MEMORY or TURBO_E_DECODE if the computation failed.
int32_t turbo_settle(turbo_context & ctx);

// Before a computation: makes good what an earlier failure left, or says why it cannot. See recovery.cpp.
int32_t turbo_make_ready(turbo_context & ctx);
// TURBO_OK unless the context was given up.
int32_t turbo_check_alive(const turbo_context & ctx);
// In a catch block: what an exception of llama_decode, or of a change of the cache, means. Returns its status.
int32_t turbo_decode_broke(turbo_context & ctx);
int32_t turbo_change_broke(turbo_context & ctx);

// Whether cached keys can be moved to other positions: llama.cpp's answer, and false where there are no keys.
bool turbo_can_shift(const turbo_context & ctx);

// TURBO_OK if the GBNF text parses, every rule it uses is defined and there is a rule "root".
int32_t turbo_check_grammar(const turbo_model & model, const char * text);
