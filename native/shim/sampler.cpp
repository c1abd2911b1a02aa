// Sampling through common's sampler: chain order, grammar, penalties and history as in llama.cpp's own tools.
#include "bounded.h"
#include "handles.h"
#include "log_ring.h"
#include "turbo_text.h"

#include "common.h"
#include "json.h"
#include "llama-grammar.h"
#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct grammar_deleter {
    void operator()(llama_grammar * grammar) { llama_grammar_free_impl(grammar); }
};

}  // namespace

struct turbo_sampler {
    common_sampler_ptr sampler;
    common_params_sampling params;
    const turbo_model * model = nullptr;
    int32_t n_vocab = 0;
    // A second copy of the grammar's state: common's is private, and here it tells whether the text is complete.
    std::unique_ptr<llama_grammar, grammar_deleter> grammar;
    bool grammar_moved = false;  // generated tokens were accepted since it began
};

namespace {

int32_t check_finite(const turbo_sampler_params & p) {
    const struct {
        const char * name;
        float value;
    } values[] = {
        { "temperature", p.temperature },
        { "dynatemp_range", p.dynatemp_range },
        { "dynatemp_exponent", p.dynatemp_exponent },
        { "top_p", p.top_p },
        { "min_p", p.min_p },
        { "typical_p", p.typical_p },
        { "top_n_sigma", p.top_n_sigma },
        { "xtc_probability", p.xtc_probability },
        { "xtc_threshold", p.xtc_threshold },
        { "repeat_penalty", p.repeat_penalty },
        { "frequency_penalty", p.frequency_penalty },
        { "presence_penalty", p.presence_penalty },
        { "dry_multiplier", p.dry_multiplier },
        { "dry_base", p.dry_base },
        { "mirostat_tau", p.mirostat_tau },
        { "mirostat_eta", p.mirostat_eta },
        { "adaptive_target", p.adaptive_target },
        { "adaptive_decay", p.adaptive_decay },
    };
    for (const auto & v : values) {
        if (!std::isfinite(v.value)) {
            return turbo_fail(TURBO_E_ARGUMENT, "%s is not a finite number", v.name);
        }
    }
    if (p.repeat_penalty <= 0.0f) {
        return turbo_fail(TURBO_E_ARGUMENT, "repeat_penalty is %g, it must be above 0", (double) p.repeat_penalty);
    }
    if (p.mirostat < 0 || p.mirostat > 2) {
        return turbo_fail(TURBO_E_ARGUMENT, "mirostat is %d, allowed are 0, 1 and 2", p.mirostat);
    }
    return TURBO_OK;
}

std::vector<std::string> split(const char * text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) {
        parts.push_back(part);
    }
    return parts;
}

int32_t fill_order(const char * order, common_params_sampling & out) {
    const std::vector<std::string> names = split(order, ';');
    for (const std::string & name : names) {
        if (common_sampler_types_from_names({ name }).size() != 1) {
            return turbo_fail(TURBO_E_ARGUMENT, "unknown sampler '%s' in the order", name.c_str());
        }
    }
    out.samplers = common_sampler_types_from_names(names);
    return TURBO_OK;
}

int32_t fill_bias(const turbo_sampler_params & p, const turbo_model & model, common_params_sampling & out) {
    for (int32_t i = 0; i < p.n_bias; i++) {
        if (p.bias_tokens[i] < 0 || p.bias_tokens[i] >= model.n_vocab || std::isnan(p.bias_values[i])) {
            return turbo_fail(TURBO_E_ARGUMENT, "logit bias %g for token %d, the vocabulary has %d",
                              (double) p.bias_values[i], p.bias_tokens[i], model.n_vocab);
        }
        out.logit_bias.push_back({ p.bias_tokens[i], p.bias_values[i] });
    }
    for (int32_t token = 0; p.ignore_eos && token < model.n_vocab; token++) {
        if (llama_vocab_is_eog(model.vocab, token)) {
            out.logit_bias.push_back({ token, -INFINITY });
        }
    }
    out.ignore_eos = p.ignore_eos;
    return TURBO_OK;
}

void fill_breakers(const turbo_sampler_params & p, common_params_sampling & out) {
    if (!p.dry_breakers) {
        return;
    }
    out.dry_sequence_breakers.clear();
    for (const char * s = p.dry_breakers; s < p.dry_breakers + p.dry_breakers_bytes; s += strlen(s) + 1) {
        out.dry_sequence_breakers.emplace_back(s);
    }
}

int32_t fill_grammar(const turbo_sampler_params & p, const turbo_model & model, common_params_sampling & out) {
    if (!p.grammar) {
        return TURBO_OK;
    }
    const int32_t status = turbo_check_grammar(model, p.grammar);
    if (status != TURBO_OK) {
        return status;
    }
    out.grammar = { COMMON_GRAMMAR_TYPE_USER, p.grammar };
    out.grammar_lazy = p.grammar_lazy;
    if (p.triggers) {
        for (const common_json & item : common_json::parse(p.triggers)) {
            common_grammar_trigger trigger;
            trigger.type = (common_grammar_trigger_type) item.at("type").get<int>();
            trigger.value = item.at("value").get<std::string>();
            trigger.token = item.at("token").get<int>();
            out.grammar_triggers.push_back(trigger);
        }
    }
    return TURBO_OK;
}

void fill_numbers(const turbo_sampler_params & p, common_params_sampling & out) {
    out.seed = p.seed;
    out.min_keep = p.min_keep;
    out.temp = p.temperature;
    out.dynatemp_range = p.dynatemp_range;
    out.dynatemp_exponent = p.dynatemp_exponent;
    out.top_k = p.top_k;
    out.top_p = p.top_p;
    out.min_p = p.min_p;
    out.typ_p = p.typical_p;
    out.top_n_sigma = p.top_n_sigma;
    out.xtc_probability = p.xtc_probability;
    out.xtc_threshold = p.xtc_threshold;
    out.penalty_last_n = p.penalty_last_n;
    out.penalty_repeat = p.repeat_penalty;
    out.penalty_freq = p.frequency_penalty;
    out.penalty_present = p.presence_penalty;
    out.dry_multiplier = p.dry_multiplier;
    out.dry_base = p.dry_base;
    out.dry_allowed_length = p.dry_allowed_length;
    out.dry_penalty_last_n = p.dry_penalty_last_n;
    out.mirostat = p.mirostat;
    out.mirostat_tau = p.mirostat_tau;
    out.mirostat_eta = p.mirostat_eta;
    out.adaptive_target = p.adaptive_target;
    out.adaptive_decay = p.adaptive_decay;
    out.no_perf = p.no_perf;
}

int32_t make_chain(turbo_sampler & sampler) {
    turbo_log_mark();
    try {
        common_params_sampling params = sampler.params;  // common may change what it is given
        sampler.sampler.reset(common_sampler_init(sampler.model->model, params));
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & error) {
        return turbo_fail(TURBO_E_ARGUMENT, "%s: %s", error.what(), turbo_log_reason().c_str());
    }
    if (!sampler.sampler) {
        return turbo_fail(TURBO_E_ARGUMENT, "the sampler was refused: %s", turbo_log_reason().c_str());
    }
    sampler.grammar.reset();
    sampler.grammar_moved = false;
    const std::string & text = sampler.params.grammar.grammar;
    if (!text.empty() && !sampler.params.grammar_lazy) {
        sampler.grammar.reset(llama_grammar_init_impl(sampler.model->vocab, text.c_str(), "root", false, nullptr, 0,
                                                      nullptr, 0));
    }
    return TURBO_OK;
}

// Makes the chain and the grammar's state anew from sampler.params. Expanding a grammar recurses and allocates as it says.
int32_t begin(turbo_sampler & sampler) {
    const std::string & grammar = sampler.params.grammar.grammar;
    if (grammar.empty()) {
        return make_chain(sampler);
    }
    return turbo_bounded("the grammar", turbo_text_budget(grammar.size()), [&] { return make_chain(sampler); });
}

bool can_end(const llama_grammar & grammar) {
    return std::any_of(grammar.stacks.begin(), grammar.stacks.end(), [](const auto & stack) { return stack.empty(); });
}

// Accepts a token; one that ends the text too early would make llama.cpp's grammar abort the process.
int32_t accept(turbo_sampler & sampler, int32_t token, bool generated) {
    const bool constrained = generated && sampler.grammar;
    const bool ends = constrained && llama_vocab_is_eog(sampler.model->vocab, token);
    if (ends && !can_end(*sampler.grammar)) {
        return turbo_fail(TURBO_E_ARGUMENT, "no token of the vocabulary fits the grammar here");
    }
    common_sampler_accept(sampler.sampler.get(), token, generated);
    if (constrained) {
        sampler.grammar_moved = true;
        if (!ends) {
            llama_grammar_accept_impl(*sampler.grammar, token);
        }
    }
    return TURBO_OK;
}

}  // namespace

void turbo_sampler_params_init(turbo_sampler_params * params) {
    const common_params_sampling d;
    *params = turbo_sampler_params{};
    params->seed = d.seed;
    params->min_keep = d.min_keep;
    params->temperature = d.temp;
    params->dynatemp_range = d.dynatemp_range;
    params->dynatemp_exponent = d.dynatemp_exponent;
    params->top_k = d.top_k;
    params->top_p = d.top_p;
    params->min_p = d.min_p;
    params->typical_p = d.typ_p;
    params->top_n_sigma = d.top_n_sigma;
    params->xtc_probability = d.xtc_probability;
    params->xtc_threshold = d.xtc_threshold;
    params->penalty_last_n = d.penalty_last_n;
    params->repeat_penalty = d.penalty_repeat;
    params->frequency_penalty = d.penalty_freq;
    params->presence_penalty = d.penalty_present;
    params->dry_multiplier = d.dry_multiplier;
    params->dry_base = d.dry_base;
    params->dry_allowed_length = d.dry_allowed_length;
    params->dry_penalty_last_n = d.dry_penalty_last_n;
    params->mirostat_tau = d.mirostat_tau;
    params->mirostat_eta = d.mirostat_eta;
    params->adaptive_target = d.adaptive_target;
    params->adaptive_decay = d.adaptive_decay;
    params->no_perf = true;
}

int32_t turbo_sampler_new(const turbo_model * model, const turbo_sampler_params * params, turbo_sampler ** out) {
    *out = nullptr;
    return turbo_guard("sampler_new", [&]() -> int32_t {
        common_params_sampling sampling;
        int32_t status = check_finite(*params);
        if (status == TURBO_OK && params->order) {
            status = fill_order(params->order, sampling);
        }
        if (status == TURBO_OK) {
            status = fill_bias(*params, *model, sampling);
        }
        if (status == TURBO_OK) {
            status = fill_grammar(*params, *model, sampling);
        }
        if (status != TURBO_OK) {
            return status;
        }
        fill_numbers(*params, sampling);
        fill_breakers(*params, sampling);
        auto sampler = std::make_unique<turbo_sampler>();
        sampler->params = std::move(sampling);
        sampler->model = model;
        status = begin(*sampler);
        if (status != TURBO_OK) {
            return status;
        }
        sampler->n_vocab = model->n_vocab;
        *out = sampler.release();
        return TURBO_OK;
    });
}

void turbo_sampler_free(turbo_sampler * sampler) {
    delete sampler;
}

int32_t turbo_sampler_next(turbo_sampler * sampler, turbo_context * ctx, int32_t index, int32_t * token) {
    const int32_t rows = ctx->n_outputs;
    const int32_t row = index < 0 ? rows + index : index;
    if (row < 0 || row >= rows) {
        return turbo_fail(TURBO_E_ARGUMENT, "logit row %d, the last decode has %d", index, rows);
    }
    return turbo_guard("sampler_next", [&] {
        // llama.cpp counts rows from the end when the index is negative
        *token = common_sampler_sample(sampler->sampler.get(), ctx->ctx, row - rows);
        return accept(*sampler, *token, true);
    });
}

int32_t turbo_sampler_step(turbo_sampler * sampler, turbo_context * ctx, int32_t token, int32_t pos, int32_t seq,
                           int32_t * next) {
    *next = TURBO_STEP_NOT_RUN;
    const int32_t status = turbo_context_decode(ctx, &token, 1, pos, seq, TURBO_OUTPUT_LAST);
    if (status != TURBO_OK) {
        return status;
    }
    *next = TURBO_STEP_NOT_CHOSEN;
    int32_t chosen = 0;
    const int32_t sampled = turbo_sampler_next(sampler, ctx, -1, &chosen);
    if (sampled == TURBO_OK) {
        *next = chosen;
    }
    return sampled;
}

int32_t turbo_sampler_accept(turbo_sampler * sampler, int32_t token, bool generated) {
    if (token < 0 || token >= sampler->n_vocab) {
        return turbo_fail(TURBO_E_ARGUMENT, "token %d is outside the vocabulary of %d", token, sampler->n_vocab);
    }
    return turbo_guard("sampler_accept", [&] { return accept(*sampler, token, generated); });
}

int32_t turbo_sampler_reset(turbo_sampler * sampler) {
    return turbo_guard("sampler_reset", [&] {
        // common's own reset leaves the grammar where it is; a lazy one has no second copy to ask
        if (sampler->grammar_moved || sampler->params.grammar_lazy) {
            return begin(*sampler);
        }
        common_sampler_reset(sampler->sampler.get());
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_sampler_complete(const turbo_sampler * sampler) {
    if (!sampler->grammar || sampler->grammar->partial_utf8.n_remain > 0) {
        return 0;
    }
    const llama_grammar_stacks & stacks = sampler->grammar->stacks;
    return std::all_of(stacks.begin(), stacks.end(), [](const auto & stack) { return stack.empty(); });
}

int32_t turbo_sampler_describe(const turbo_sampler * sampler, char ** out) {
    return turbo_guard("sampler_describe", [&] {
        return turbo_give_text(common_sampler_print(sampler->sampler.get()), out);
    });
}
