// Host side of the attention kernels: how a call is cut over the chip, and the launches.

#include "attend_launch.cuh"

namespace turbo_cuda {

static int block_bytes_of(int format, int block) {
    switch (format) {
        case KV_TURBO2:
        case KV_TURBO2_TCQ: return TURBO_BLOCK_BYTES(2, block);
        case KV_TURBO3:
        case KV_TURBO3_TCQ: return TURBO_BLOCK_BYTES(3, block);
        case KV_TURBO4:
        case KV_TURBO4_TCQ: return TURBO_BLOCK_BYTES(4, block);
        case KV_F16: return 2 * block;
        case KV_Q8_0: return 34 * (block / 32);
        case KV_Q4_0: return 18 * (block / 32);
        default: return 0;
    }
}

// Value of one integer step of a score before the block scale; the query rotation divides by sqrt(block).
static float score_unit(int format, int block) {
    switch (format) {
        case KV_TURBO2: return format_turbo2::unit(block);
        case KV_TURBO3: return format_turbo3::unit(block);
        case KV_TURBO4: return format_turbo4::unit(block);
        case KV_TURBO2_TCQ: return format_turbo2_tcq::unit(block);
        case KV_TURBO3_TCQ: return format_turbo3_tcq::unit(block);
        case KV_TURBO4_TCQ: return format_turbo4_tcq::unit(block);
        default: return 1.0f;
    }
}

static stage_params make_stage(const kv_tensor &x, const attend_args &args, int heads) {
    stage_params s;
    s.data = x.data;
    s.stride_token = x.stride_token, s.stride_head = x.stride_head, s.stride_stream = x.stride_stream;
    s.format = x.format;
    s.block_bytes = block_bytes_of(x.format, args.block);
    s.head_bytes = s.block_bytes * (args.head_dim / args.block);
    s.row_bytes = s.head_bytes * heads;
    s.contiguous = s.row_bytes == x.stride_token;
    return s;
}

static bool scalar_family(const attend_args &args) {
    return args.k.format <= KV_TURBO4 && args.v.format <= KV_TURBO4;
}

// Has this pair of formats an instance of its own (attend_pairs.cu)?
static bool own_instance(const attend_args &args, const attend_plan &plan) {
    return plan.tiles == 1 && attend_has_pair(args);
}

static bool packed_heads(const attend_args &args) {
    return args.k.stride_head * args.n_head_kv == args.k.stride_token &&
           args.v.stride_head * args.n_head_kv == args.v.stride_token;
}

// Whole rows of f16 would all begin in the same bank: they are staged one by one, 16 bytes apart. So are rows of which
// a thread block takes some heads only; but issuing a copy takes longer than a few heads too many, if the cache is
// short.
static bool stages_rows(const attend_args &args, const attend_plan &plan) {
    const bool whole =
        plan.heads_per_block == args.n_head_kv || ((plan.cluster > 0 || plan.wide) && args.n_head_kv <= 8);
    return !packed_heads(args) || !whole || args.k.format == KV_F16 || args.v.format == KV_F16;
}

// Staged bytes of one token, padding included.
static size_t token_bytes(const attend_args &args, const attend_plan &plan) {
    const int block = std::max(block_bytes_of(args.k.format, args.block), block_bytes_of(args.v.format, args.block));
    const bool rows = stages_rows(args, plan);
    const size_t heads = rows ? plan.heads_per_block : args.n_head_kv;
    return heads * block * (args.head_dim / args.block) + (rows ? 30 : 0);
}

// A thread block has room for so many runs, large heads for fewer: a cache with more is cut into more stretches.
static int least_splits(const attend_args &args) {
    const int tokens = args.runs.cells_each * (args.head_dim > 256 ? 8 : 32);
    return args.runs.rows == nullptr || tokens == 0 ? 1 : (args.n_kv + tokens - 1) / tokens;
}

// Shared memory for what runs add to the scores of a thread block: a little more than it takes. `rows` numbers a run
// and head; the chip is shared by the heads of all streams, each in so many blocks of columns. A stretch of the cache
// is no longer than its share, but for a short one, which is cut into few.
static size_t run_bytes(const attend_args &args, int heads_per_block, int column_blocks, size_t rows) {
    const int blocks = args.n_streams * column_blocks * (args.n_head_kv / heads_per_block);
    const int splits = std::max(least_splits(args), args.multiprocessors / std::max(1, blocks));
    const int tokens = std::max(args.n_kv / splits, 256) + 64;
    return most_runs(args.runs, tokens) * heads_per_block * rows * sizeof(float);
}

// Columns of a KV head.
static int columns_of(const attend_args &args) {
    return args.n_head / args.n_head_kv * args.n_rows;
}

// Shared memory of the queries of a thread block, and what lies before them: bytes for codes (attend_shape).
static size_t query_bytes(const attend_args &args, const attend_plan &plan) {
    const size_t value = !own_instance(args, plan) && !scalar_family(args) ? 32 : args.k.format == KV_Q8_0 ? 16 : 8;
    return (size_t) plan.heads_per_block * plan.tiles * (args.head_dim * value + args.head_dim) + 16 +
           512 * plan.tiles + barrier_bytes(16);
}

// The same for warps that unpack for themselves: they add the runs of a head block by block.
static size_t own_run_bytes(const attend_args &args, const attend_plan &plan) {
    const int columns = 8 * plan.tiles, column_blocks = (columns_of(args) + columns - 1) / columns;
    return run_bytes(args, plan.heads_per_block, column_blocks, (size_t) columns * (args.head_dim / args.block));
}

// Shared memory of a thread block with one group of warps: while it walks, and when it parks its results.
static size_t smallest_block(const attend_args &args, const attend_plan &plan) {
    const size_t tables =
        look_up_bytes(args.k.format, 2) + (args.v.format == args.k.format ? 0 : look_up_bytes(args.v.format, 2));
    const size_t walking =
        query_bytes(args, plan) + tables + ring_slots * (16 * std::max(plan.slices, 1) * token_bytes(args, plan) + 64);
    const size_t parked = (size_t) plan.heads_per_block * plan.tiles * 8 * (args.head_dim * 9 / 8 + 5) * sizeof(float) +
                          barrier_bytes(16);
    return std::max(walking + own_run_bytes(args, plan), parked);
}

// Shared memory of attend_rows.cuh with so many groups of warps, tiles unpacked once: a little more than it takes.
static size_t rows_block_bytes(const attend_args &args, const attend_plan &plan, int groups) {
    const size_t keys = 16 * plan.slices, row = 2 * args.head_dim, heads = plan.heads_per_block;
    const size_t queries = heads * plan.warps_per_head * plan.tiles * 16 * (row + 4);
    const size_t tables = look_up_bytes(args.k.format, 2) + look_up_bytes(args.v.format, 2);
    const size_t staged = 2 * (2 * keys * token_bytes(args, plan) + 96);
    const int columns = plan.warps_per_head * plan.tiles * 16,
              column_blocks = (columns_of(args) + columns - 1) / columns;
    return 320 + queries + tables + run_bytes(args, plan.heads_per_block, column_blocks, columns) +
           groups * (heads * 2 * keys * row + staged);
}

// What its eight warps leave there at the end.
static size_t rows_parked_bytes(const attend_args &args, int tiles) {
    return 320 + 8 * 16 * tiles * (args.head_dim + 6) * sizeof(float);
}

// A short cache: a thread block a head, and the blocks along the cache are a cluster that merges its results in shared
// memory. Nothing else of the plan matters then. False if the cache is too long for that.
static bool plan_cluster(const attend_args &args, attend_plan &plan, int warps, int column_blocks) {
    plan.cluster = 1, plan.heads_per_block = 1;
    plan.slices = plan.tiles > 1 && args.head_dim <= 128 ? 2 : 1;
    const int tiles = (args.n_kv + 16 * plan.slices - 1) / (16 * plan.slices);
    while (plan.cluster < most_in_cluster && plan.cluster * 4 < tiles) { // a warp a scheduler
        plan.cluster *= 2;
    }
    const size_t group = ring_slots * (16 * plan.slices * token_bytes(args, plan) + 64);
    const size_t one = smallest_block(args, plan);
    const int groups = one > args.shared_limit ? 0 : std::min<int>(warps, 1 + (args.shared_limit - one) / group);
    plan.splits = plan.cluster;
    return tiles <= 2 * plan.cluster * groups &&
           args.n_head_kv * column_blocks * args.n_streams * plan.cluster <= args.multiprocessors;
}

// Many columns: a team of warps a KV head, for as many heads as there are; for a short cache for one, so that no second
// launch has to merge. False if there is no room.
static bool plan_rows(const attend_args &args, int columns, int heads_per_block, int tiles, attend_plan &plan) {
    constexpr int warps = 8;
    plan = {};
    plan.tiles = tiles;
    plan.slices = 2;
    const int needed = (columns + 16 * tiles - 1) / (16 * tiles);
    const bool brief = args.n_kv <= 16 * plan.slices * warps;
    int groups = 1;
    const int most = brief || !packed_heads(args) ? 1 : warps;
    for (int heads = heads_per_block > 0 ? heads_per_block : most; heads > 0; heads--) {
        if (args.n_head_kv % heads != 0 || heads > warps) {
            continue;
        }
        plan.heads_per_block = heads, plan.warps_per_head = 1;
        while (plan.warps_per_head < needed && heads * plan.warps_per_head * 2 <= warps) {
            plan.warps_per_head *= 2;
        }
        groups = warps / (heads * plan.warps_per_head);
        if (heads == 1 || rows_block_bytes(args, plan, 1) <= args.shared_limit) {
            break;
        }
    }
    if (std::max(rows_block_bytes(args, plan, 1), rows_parked_bytes(args, tiles)) > args.shared_limit ||
        (tiles == 2 && needed == 1 && rows_block_bytes(args, plan, groups) > args.shared_limit)) {
        return tiles == 2 && plan_rows(args, columns, heads_per_block, 1, plan); // warps share what one has no room for
    }
    const int block_columns = 16 * tiles * plan.warps_per_head, blocks = (columns + block_columns - 1) / block_columns;
    const int width = std::max(1, args.multiprocessors /
                                      std::max(1, args.n_streams * blocks * (args.n_head_kv / plan.heads_per_block)));
    plan.splits = std::max(least_splits(args),
                           std::min((args.n_kv + 16 * plan.slices * groups - 1) / (16 * plan.slices * groups), width));
    return true;
}

// Shared memory of attend_wide.cuh with its shortest tiles: a little more than it takes.
static size_t wide_block_bytes(const attend_args &args, const attend_plan &plan, int column_blocks) {
    const size_t keys = 32, row = 2 * args.head_dim, heads = plan.heads_per_block;
    const size_t tables = look_up_bytes(args.k.format, 2) + look_up_bytes(args.v.format, 2);
    return 2048 + heads * 64 * (row + 36) + 2 * 2 * (keys * row + 32) + 2 * (2 * keys * token_bytes(args, plan) + 96) +
           tables + 16 + run_bytes(args, plan.heads_per_block, column_blocks, 64);
}

// Many columns, warpgroup products: two heads a thread block. False where the cache is too short to be shared out,
// tokens cannot be fetched whole, or there is no room.
static bool plan_wide(const attend_args &args, int columns, attend_plan &plan) {
    const int column_blocks = (columns + 63) / 64;
    plan = {};
    plan.wide = true, plan.tiles = 1, plan.slices = 2, plan.warps_per_head = 4;
    for (int heads = 2; heads > 0; heads--) {
        plan.heads_per_block = heads;
        if (args.n_head_kv % heads == 0 && !stages_rows(args, plan) &&
            wide_block_bytes(args, plan, column_blocks) <= args.shared_limit) {
            break;
        }
        if (heads == 1) {
            return false;
        }
    }
    const int blocks = column_blocks * (args.n_head_kv / plan.heads_per_block) * args.n_streams;
    plan.splits = std::max(least_splits(args), std::min((args.n_kv + 63) / 64, args.multiprocessors / blocks));
    return plan.splits > 1;
}

// Shared memory of attend_batch.cuh with two staged tiles a team, the fewest: a little more than it takes.
static size_t batch_block_bytes(const attend_args &args, const attend_plan &plan, int columns, int column_blocks) {
    const size_t heads = plan.heads_per_block, teams = batch_warpgroups / heads;
    const size_t tables = look_up_bytes(args.k.format, 2) + look_up_bytes(args.v.format, 2);
    // a stretch of the chip's that is a tile longer for each team
    const size_t runs =
        run_bytes(args, plan.heads_per_block, column_blocks, columns) + teams * heads * columns * sizeof(float);
    const size_t warpgroup = columns * (2 * 128 + 5 * sizeof(float)) + 128 * 16 + 1024;
    return 1024 + heads * columns * (128 + sizeof(float)) + batch_warpgroups * warpgroup +
           teams * 2 * (2 * batch_keys * token_bytes(args, plan) + 96) + tables + runs;
}

// Codes of our own, warpgroup products: as many heads a thread block as it has warpgroups, if that divides them. False
// as of plan_wide.
static bool plan_batch(const attend_args &args, int n_columns, attend_plan &plan) {
    const int columns = batch_columns_of(n_columns), column_blocks = (n_columns + columns - 1) / columns;
    plan = {};
    plan.wide = plan.batch = true, plan.tiles = 1, plan.slices = 4, plan.warps_per_head = 4;
    for (int heads = batch_warpgroups; heads > 0; heads--) {
        plan.heads_per_block = heads;
        if (args.n_head_kv % heads == 0 && !stages_rows(args, plan) &&
            batch_block_bytes(args, plan, columns, column_blocks) <= args.shared_limit) {
            break;
        }
        if (heads == 1) {
            return false;
        }
    }
    const int blocks = column_blocks * (args.n_head_kv / plan.heads_per_block) * args.n_streams,
              teams = batch_warpgroups / plan.heads_per_block;
    plan.splits =
        teams * std::max(least_splits(args), std::min((args.n_kv + batch_keys * teams - 1) / (batch_keys * teams),
                                                      std::max(1, args.multiprocessors / blocks)));
    return plan.splits > 1;
}

// Do teams pay? They start and end more slowly, and what they save grows with the cache (measured on an H200,
// docs/performance.md): the more, the longer unpacking takes.
static bool use_teams(const attend_args &args, int columns, attend_way way) {
    if (columns <= 16 || args.head_dim != 128 || args.block != 128 || way == attend_way::own) {
        return false;
    }
    return way != attend_way::best || args.n_kv >= (scalar_family(args) ? 24576 : 8192);
}

// Can warpgroup products be used, for codes of our own only or for all formats? Do they pay? (measured on an H200)
static bool use_warpgroups(const attend_args &args, int columns, attend_way asked, attend_way way) {
    if (!args.warpgroups || columns <= 8 || args.head_dim != 128 || args.block != 128) {
        return false;
    }
    if (way == attend_way::batch && (args.k.format > KV_TURBO4_TCQ || args.v.format > KV_TURBO4_TCQ)) {
        return false;
    }
    if (asked != attend_way::best) {
        return asked == way;
    }
    // One row is left to the kernel that takes it from where it is being encoded.
    if (args.n_rows == 1 || args.n_kv < (columns <= 32 && scalar_family(args) ? 4096 : 2048)) {
        return false;
    }
    // More columns than one warpgroup has for a head are unpacked once by attend_wide.cuh, and so are as many where the
    // cache is so short that it counts how they begin and end.
    return way == attend_way::wide || columns <= 16 || (columns <= 32 && args.n_kv >= 49152);
}

// Shared memory that newest tokens take if they come from their source.
static size_t newest_bytes(const attend_args &args, const attend_plan &plan) {
    return plan.heads_per_block * args.pending.n_rows * (args.head_dim + 8 * plan.tiles) * sizeof(float);
}

attend_plan attend_make_plan(const attend_args &args, int heads_per_block, int slices, attend_way way) {
    attend_plan plan = {};
    const int columns = columns_of(args);
    if (use_warpgroups(args, columns, way, attend_way::batch) && plan_batch(args, columns, plan)) {
        return plan;
    }
    if (use_warpgroups(args, columns, way, attend_way::wide) && plan_wide(args, columns, plan)) {
        return plan;
    }
    if (use_teams(args, columns, way) && plan_rows(args, columns, heads_per_block, 2, plan)) {
        return plan;
    }
    plan = {};
    plan.tiles = columns > 8 && args.head_dim <= 256 ? 2 : 1;
    const int warps = block_warps(args.head_dim, plan.tiles),
              column_blocks = (columns + 8 * plan.tiles - 1) / (8 * plan.tiles);
    if (args.clusters && heads_per_block == 0 && slices == 0 && plan_cluster(args, plan, warps, column_blocks)) {
        return plan;
    }
    plan.cluster = 0;
    plan.heads_per_block = packed_heads(args) ? args.n_head_kv : 1;
    while (plan.heads_per_block > 8) {
        plan.heads_per_block = (plan.heads_per_block + 1) / 2;
    }
    while (args.n_head_kv % plan.heads_per_block != 0) {
        plan.heads_per_block--;
    }
    plan.slices = plan.tiles > 1 && args.head_dim != 256 ? 2 : 1; // at least
    const auto newest = [&] { return attend_takes_newest(args, plan) ? newest_bytes(args, plan) : 0; };
    while (plan.heads_per_block > 1 && smallest_block(args, plan) + newest() > args.shared_limit) {
        do {
            plan.heads_per_block--;
        } while (args.n_head_kv % plan.heads_per_block != 0);
    }
    if (heads_per_block > 0) {
        plan.heads_per_block = heads_per_block;
    } else if (args.n_kv <= 16 * warps) {
        plan.heads_per_block = 1; // every warp takes one slice of the cache, nothing is left to merge
    }
    const int width = std::max(1, args.multiprocessors / std::max(1, args.n_streams * column_blocks *
                                                                         (args.n_head_kv / plan.heads_per_block)));
    const int groups = std::max(1, warps / plan.heads_per_block);
    // tokens a warp takes at a time: the instances that exist (attend_launch.cuh), few for short caches
    const bool scalar = scalar_family(args), own = own_instance(args, plan);
    const bool four = args.head_dim <= 128 && plan.tiles == 1 && (scalar || (own && args.k.format < KV_TURBO4_TCQ));
    const bool one = (args.head_dim == 512 && !scalar && !own) || (own && args.v.format == KV_Q8_0);
    const auto look_up = [&](int count) {
        return own ? own_look_up(args.k.format, args.v.format, args.head_dim, count) : 2;
    };
    const auto fits = [&](int count) {
        const size_t tables = look_up_bytes(args.k.format, look_up(count)) +
                              (args.v.format == args.k.format ? 0 : look_up_bytes(args.v.format, look_up(count)));
        const size_t ring = ring_slots * groups * (token_bytes(args, plan) * 16 * count + 64);
        return ring + tables + query_bytes(args, plan) + own_run_bytes(args, plan) + newest() <= args.shared_limit;
    };
    const int many = look_up(2) == 3 && fits(2) ? 2 : four ? 4 : one ? 1 : 2;
    plan.slices = slices > 0 ? slices : fits(many) && args.n_kv >= 32 * groups * width ? many : 1;
    if (plan.tiles > 1) {
        plan.slices = args.head_dim == 256 ? 1 : 2;
    }
    plan.splits = std::max(least_splits(args), std::min((args.n_kv + 16 * groups - 1) / (16 * groups), width));
    return plan;
}

size_t attend_scratch_bytes(const attend_args &args, const attend_plan &plan) {
    if (plan.splits == 1 || plan.cluster > 0) {
        return 0;
    }
    const size_t states = (size_t) args.n_streams * args.n_head * args.n_rows * plan.splits;
    return states * (args.head_dim + 2) * sizeof(float);
}

// Are the newest tokens taken from their source? It pays where encoding takes long; scalar codes are in the cache
// before the attention needs them.
bool attend_takes_newest(const attend_args &args, const attend_plan &plan) {
    const bool encoded = args.k.format < KV_F16 && args.v.format < KV_F16;
    return args.pending.n_rows > 0 && args.n_streams == 1 && encoded && plan.warps_per_head == 0 &&
           (is_trellis(args.k.format) || is_trellis(args.v.format)) && newest_bytes(args, plan) <= 20 * 1024;
}

// A launch that is still writing keeps its multiprocessors for a while. If they are few, thread blocks that come second
// take them over, with a shorter stretch of the cache. How much shorter is measured: what a block gets done of four
// heads of 128 while the write runs (an H200's; both take longer on a slower device).
static void plan_late(const attend_args &args, const attend_plan &plan, attend_params &p) {
    const int columns = columns_of(args);
    const bool one_row = plan.heads_per_block == args.n_head_kv && columns <= 8 * plan.tiles && args.n_streams == 1;
    const int busy = p.pending.later ? 0 : p.pending.blocks;
    if (plan.cluster > 0 || plan.warps_per_head > 0 || !one_row || busy > args.multiprocessors / 10 ||
        plan.splits <= args.multiprocessors - busy) {
        return;
    }
    p.late = plan.splits - (args.multiprocessors - busy);
    const int units = p.takes_newest ? 24 : 16; // of 16 tokens
    p.late_by = units * 4 * 128 / (plan.heads_per_block * args.head_dim);
}

cudaError_t attend(const attend_args &args, const attend_plan &plan, cudaStream_t stream) {
    attend_params p = {};
    p.q = args.q, p.q_scale = args.q_scale;
    p.q_stride_row = args.q_stride_row, p.q_stride_head = args.q_stride_head, p.q_stride_stream = args.q_stride_stream;
    p.copy_rows = stages_rows(args, plan);
    const int heads = p.copy_rows ? plan.heads_per_block : args.n_head_kv;
    p.k = make_stage(args.k, args, heads), p.v = make_stage(args.v, args, heads);
    p.runs = run_rows::of(args.runs);
    p.cluster = plan.cluster > 1;
    for (stage_params *s : {&p.k, &p.v}) {
        s->contiguous = !p.copy_rows;
        s->pitch = p.copy_rows ? (uint32_t) (s->row_bytes + 30) / 16 * 16 : (uint32_t) s->row_bytes;
    }
    p.mask = args.mask;
    p.mask_stride_row = args.mask_stride_row, p.mask_stride_stream = args.mask_stride_stream;
    p.sinks = args.sinks;
    p.out = args.out;
    p.n_head_kv = args.n_head_kv, p.gqa = args.n_head / args.n_head_kv;
    p.by_gqa = divider::by(p.gqa), p.by_heads = divider::by(plan.heads_per_block);
    p.inputs_ready = !args.pending.later && (args.inputs_ready || args.pending.n_rows > 0);
    p.n_rows = args.n_rows, p.n_columns = args.n_rows * p.gqa, p.n_kv = args.n_kv;
    if (args.n_streams == 1) {
        p.pending = args.pending;
    }
    p.takes_newest = attend_takes_newest(args, plan);
    p.heads_per_block = plan.heads_per_block;
    p.splits = plan.splits;
    plan_late(args, plan, p);
    p.partial = args.scratch;
    p.partial_ml = args.scratch + (size_t) args.n_streams * args.n_head * args.n_rows * p.splits * args.head_dim;
    const float unit = args.scale * score_unit(args.k.format, args.block);
    p.score_scale = args.soft_cap != 0.0f ? unit / args.soft_cap : unit * log2_e;
    p.source_scale = args.soft_cap != 0.0f ? args.scale / args.soft_cap : args.scale * log2_e;
    p.soft_cap = args.soft_cap * log2_e;
    p.bends = args.runs.rows != nullptr || args.soft_cap != 0.0f;
    if (plan.batch) {
        return attend_batch(p, args, stream);
    }
    if (plan.wide) {
        return attend_wide(p, args, stream);
    }
    if (plan.warps_per_head > 0) {
        return attend_rows(p, args, plan, stream);
    }
    if (own_instance(args, plan)) {
        return attend_pairs(p, args, plan, stream);
    }
    if (scalar_family(args)) {
        return attend_scalar(p, args, plan, stream);
    }
    return args.head_dim <= 128 ? attend_any_small(p, args, plan, stream) : attend_any_large(p, args, plan, stream);
}

} // namespace turbo_cuda
