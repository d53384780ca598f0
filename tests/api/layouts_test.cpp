// Ragged and paged layouts: against float64, against the dense kernel request by request, and what
// is refused. Mods are here twice, as text and as C++, so that what a name means in a request is
// not taken from the compiler: attention_oracle.h has its mods from there.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "api/tensor.h"
#include "flexc/flexc.h"
#include "random.h"

using namespace flexc;
using flexc::test::Random;
using flexc::test::rounded;

#if FLEXC_WITH_CPU

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

struct At {
    std::int64_t b, h, h_kv, q, kv, q_row, kv_row, q_len, kv_len;
};
// The modified score, d/dscore, and the one learned read: which element, and d/d it.
struct Modified {
    double value, slope = 1;
    std::int64_t element = -1;
    double partial = 0;
};
using Table = std::vector<double>;

struct Mod {
    const char* text;
    // Of t, the one buffer; how it is indexed decides what the dense kernel is given of it.
    enum class Index { none, head, request, query, key, query_row, key_row, rows, distance } index;
    Modified (*score)(const At&, double, const Table&);
    bool (*visible)(const At&, const Table&);
    bool is_integer = false; // t: of documents
};

constexpr std::int64_t kTable = 2048; // elements of t, but where its index has a size
constexpr std::int64_t kMiddle = 1024;

bool all(const At&, const Table&) { return true; }
bool causal(const At& at, const Table&) { return at.q >= at.kv; }
Modified plain(const At&, double score, const Table&) { return {score}; }
std::int64_t floor_divide(std::int64_t x, std::int64_t y) { return x / y - (x % y < 0 ? 1 : 0); }

const std::vector<Mod>& mods() {
    using Index = Mod::Index;
    static const std::vector<Mod> kMods = {
        {"score_mod = score", Index::none, plain, all},
        {"mask_mod = q_idx >= kv_idx", Index::none, plain, causal},
        {"mask_mod = 0 <= q_idx - kv_idx < 50", Index::none, plain,
         [](const At& at, const Table&) { return at.q >= at.kv && at.q - at.kv < 50; }},
        {"buffer t: f32[H] grad\nscore_mod = score + t[h] * (kv_idx - q_idx)\n"
         "mask_mod = q_idx >= kv_idx",
         Index::head,
         [](const At& at, double score, const Table& t) -> Modified {
             const auto far = static_cast<double>(at.kv - at.q);
             return {score + t[static_cast<std::size_t>(at.h)] * far, 1, at.h, far};
         },
         causal},
        {"score_mod = 3 * tanh(score / 3)", Index::none,
         [](const At&, double score, const Table&) -> Modified {
             const double tanh = std::tanh(score / 3);
             return {3 * tanh, 1 - tanh * tanh};
         },
         all},
        // Lengths of the request, and a prefix: ends of bands are clamped.
        {"score_mod = score * (1 + Q_LEN / (1 + KV_LEN))\n"
         "mask_mod = kv_idx < KV_LEN // 2 or q_idx >= kv_idx",
         Index::none,
         [](const At& at, double score, const Table&) -> Modified {
             const double factor =
                 1 + static_cast<double>(at.q_len) / static_cast<double>(1 + at.kv_len);
             return {score * factor, factor};
         },
         [](const At& at, const Table&) { return at.kv < at.kv_len / 2 || at.q >= at.kv; }},
        {"buffer t: f32[B] grad\nscore_mod = score * t[b] + t[b]", Index::request,
         [](const At& at, double score, const Table& t) -> Modified {
             const double factor = t[static_cast<std::size_t>(at.b)];
             return {score * factor + factor, factor, at.b, score + 1};
         },
         all},
        {"buffer t: f32[N] grad\nscore_mod = score + t[q_idx] * score", Index::query,
         [](const At& at, double score, const Table& t) -> Modified {
             const bool inside = at.q >= 0 && at.q < kTable;
             const double factor = inside ? t[static_cast<std::size_t>(at.q)] : 0;
             return {score * (1 + factor), 1 + factor, inside ? at.q : -1, score};
         },
         all},
        {"buffer t: f32[N] grad\nscore_mod = score + t[kv_idx]\nmask_mod = (q_idx + kv_idx) % 3 != "
         "0",
         Index::key,
         [](const At& at, double score, const Table& t) -> Modified {
             return {score + t[static_cast<std::size_t>(at.kv)], 1, at.kv, 1};
         },
         [](const At& at, const Table&) { return ((at.q + at.kv) % 3 + 3) % 3 != 0; }},
        {"buffer t: f32[N] grad\nscore_mod = score * (1 + t[q_row])", Index::query_row,
         [](const At& at, double score, const Table& t) -> Modified {
             const double factor = 1 + t[static_cast<std::size_t>(at.q_row)];
             return {score * factor, factor, at.q_row, score};
         },
         all},
        {"buffer t: f32[N] grad\nscore_mod = score + t[kv_row]\nmask_mod = q_idx >= kv_idx",
         Index::key_row,
         [](const At& at, double score, const Table& t) -> Modified {
             return {score + t[static_cast<std::size_t>(at.kv_row)], 1, at.kv_row, 1};
         },
         causal},
        {"buffer t: f32[2048] grad\nscore_mod = score + t[q_idx - kv_idx + 1024]", Index::distance,
         [](const At& at, double score, const Table& t) -> Modified {
             const std::int64_t place = at.q - at.kv + kMiddle;
             const bool inside = place >= 0 && place < kTable;
             return {score + (inside ? t[static_cast<std::size_t>(place)] : 0), 1,
                     inside ? place : -1, 1};
         },
         all},
        // A mask that only data decides, of tokens of the packed tensor.
        {"buffer t: i32[N]\nmask_mod = t[kv_row] != 2", Index::key_row, plain,
         [](const At& at, const Table& t) { return t[static_cast<std::size_t>(at.kv_row)] != 2; },
         true},
        // Whole tiles are hidden, which only tests of tiles tell: by q and kv, by head, by data.
        {"mask_mod = (q_idx // 64 + kv_idx // 64) % 3 == 0", Index::none, plain,
         [](const At& at, const Table&) {
             const std::int64_t blocks = floor_divide(at.q, 64) + at.kv / 64;
             return (blocks % 3 + 3) % 3 == 0;
         }},
        {"mask_mod = kv_idx // 100 % 4 == h % 4 or q_idx == kv_idx", Index::none, plain,
         [](const At& at, const Table&) { return at.kv / 100 % 4 == at.h % 4 || at.q == at.kv; }},
        {"buffer t: i32[N]\nmask_mod = t[kv_idx // 128] > 1", Index::key, plain,
         [](const At& at, const Table& t) { return t[static_cast<std::size_t>(at.kv / 128)] > 1; },
         true},
        {"score_mod = where((kv_idx // 7) % 2 == h % 2, score, -inf)", Index::none,
         [](const At& at, double score, const Table&) -> Modified {
             return (at.kv / 7) % 2 == at.h % 2 ? Modified{score} : Modified{-kInfinity, 0};
         },
         all},
    };
    return kMods;
}

std::size_t block_of(std::int64_t position) {
    return static_cast<std::size_t>(std::max<std::int64_t>(position, 0) / 64);
}

// Masks of every tier, under which most tiles are hidden and some are whole.
const std::vector<Mod>& hiding_mods() {
    using Index = Mod::Index;
    static const std::vector<Mod> kMods = {
        {"buffer t: i32[N]\nmask_mod = t[max(q_idx, 0) // 64] == t[kv_idx // 64]", Index::key,
         plain,
         [](const At& at, const Table& t) { return t[block_of(at.q)] == t[block_of(at.kv)]; },
         true},
        {"buffer t: i32[N]\nmask_mod = t[q_row // 64] == t[kv_row // 64]", Index::rows, plain,
         [](const At& at, const Table& t) {
             return t[block_of(at.q_row)] == t[block_of(at.kv_row)];
         },
         true},
        {"buffer t: i32[N]\nmask_mod = (kv_idx < 70 or t[max(q_idx, 0) // 64] != t[kv_idx // 64]) "
         "and q_idx >= kv_idx",
         Index::key, plain,
         [](const At& at, const Table& t) {
             return (at.kv < 70 || t[block_of(at.q)] != t[block_of(at.kv)]) && at.q >= at.kv;
         },
         true},
        {"buffer t: i32[N]\nmask_mod = t[(max(q_idx, 0) // 64 * 7 + kv_idx // 128) % 64] > 1",
         Index::key, plain,
         [](const At& at, const Table& t) {
             return t[(block_of(at.q) * 7 + static_cast<std::size_t>(at.kv / 128)) % 64] > 1;
         },
         true},
        {"buffer t: i32[N]\nmask_mod = 0.5 * t[max(q_idx, 0) // 64] + 0.25 * t[kv_idx // 64] < 0.5",
         Index::key, plain,
         [](const At& at, const Table& t) {
             return 0.5 * t[block_of(at.q)] + 0.25 * t[block_of(at.kv)] < 0.5;
         },
         true},
        {"buffer t: i32[N]\nmask_mod = t[kv_idx // 64] == (h + t[max(q_idx, 0) // 64]) % 3",
         Index::key, plain,
         [](const At& at, const Table& t) {
             return t[block_of(at.kv)] ==
                    static_cast<double>((at.h + static_cast<std::int64_t>(t[block_of(at.q)])) % 3);
         },
         true},
        {"buffer t: i32[N]\nmask_mod = abs(t[max(q_idx, 0) // 64] - t[kv_idx // 64]) < 1 or "
         "max(t[kv_idx // 64], t[max(q_idx, 0) // 64]) * 2 // 3 == 2 and "
         "not min(t[max(q_idx, 0) // 64] - 2, t[kv_idx // 64]) >= 0",
         Index::key, plain,
         [](const At& at, const Table& t) {
             const double a = t[block_of(at.q)], b = t[block_of(at.kv)];
             return a == b || (std::floor(std::max(a, b) * 2 / 3) == 2 && std::min(a - 2, b) < 0);
         },
         true},
        {"buffer t: i32[N]\nmask_mod = (t[max(q_idx, 0) // 64] if t[max(q_idx, 0) // 64] < "
         "t[kv_idx // 64] else t[kv_idx // 64] * 2) == 2 or "
         "(t[max(q_idx, 0) // 64] * t[kv_idx // 64] + 1) % 8 == 7",
         Index::key, plain,
         [](const At& at, const Table& t) {
             const double a = t[block_of(at.q)], b = t[block_of(at.kv)];
             return (a < b ? a : b * 2) == 2 || std::fmod(a * b + 1, 8) == 7;
         },
         true},
    };
    return kMods;
}

// A sink of s, the one buffer.
struct Sink {
    const char* text;
    enum class Index { head, request, query_row } index;
    // Of the element and of the row.
    double (*value)(const At&, double);
    double (*slope)(const At&);
};
double unit(const At&) { return 1; }

const std::vector<Sink>& sinks() {
    using Index = Sink::Index;
    static const std::vector<Sink> kSinks = {
        {"s[h]", Index::head, [](const At&, double s) { return s; }, unit},
        {"s[q_row] + h", Index::query_row,
         [](const At& at, double s) { return s + static_cast<double>(at.h); }, unit},
        {"s[b] * KV_LEN / (Q_LEN + KV_LEN)", Index::request,
         [](const At& at, double s) {
             return s * static_cast<double>(at.kv_len) / static_cast<double>(at.q_len + at.kv_len);
         },
         [](const At& at) {
             return static_cast<double>(at.kv_len) / static_cast<double>(at.q_len + at.kv_len);
         }},
        {"s[h] * (1 + 0.01 * q_idx)", Index::head,
         [](const At& at, double s) { return s * (1 + 0.01 * static_cast<double>(at.q)); },
         [](const At& at) { return 1 + 0.01 * static_cast<double>(at.q); }},
    };
    return kSinks;
}

struct Case {
    const Mod* mod = nullptr;
    const Sink* sink = nullptr;
    DType dtype = DType::f32;
    Layout queries = Layout::ragged, keys = Layout::ragged;
    std::int64_t heads = 1, kv_heads = 1, d = 64, dv = 64;
    std::int64_t head_offset = 0, global_heads = 0, global_kv_heads = 0; // 0: all heads are here
    bool backward = false, has_d_lse = false, batch_invariant = false;
    bool max_scores = false;
    bool deterministic = false, narrow_gradients = false; // dq, dk and dv of the kernel's type
    std::optional<DType> kv_dtype = {};                   // with scales of this form
    enum class Scales { none, one, heads, pages, all } scales = Scales::none;
    Device device = Device::cpu();
    ForwardKernel forward_kernel = ForwardKernel::automatic;
    BackwardKernel backward_kernel = BackwardKernel::automatic;
    int threads = 1; // waking more takes longer than most cases

    std::vector<std::int32_t> q_lens, kv_lens, q_rows, kv_rows; // used, and there
    std::vector<std::int32_t> cu_q, cu_k, starts;
    QueryStart start = QueryStart::automatic;
    bool by_device = false; // lengths come by update() or with calls, in the device's memory
    bool has_starts = false, by_table = true, heads_first = false;
    std::int64_t page_size = 0, pages = 0, max_pages = 0;
    std::vector<std::int32_t> table, indptr, indices, last;

    std::string text() const {
        if (sink == nullptr) return mod->text;
        return "buffer s: f32[M] grad\n" + std::string(mod->text) + "\nsink = " + sink->text;
    }
    std::int64_t sinks_element(std::int64_t b, std::int64_t h, std::int64_t row) const {
        return sink->index == Sink::Index::head ? h : sink->index == Sink::Index::request ? b : row;
    }
    std::int64_t batch() const { return static_cast<std::int64_t>(q_lens.size()); }
    // On a GPU instead of an update, on a CPU after one.
    bool by_call() const { return by_device && heads % 2 == 0; }
    std::int64_t most(const std::vector<std::int32_t>& lens) const {
        return lens.empty() ? 0 : *std::max_element(lens.begin(), lens.end());
    }
    std::int64_t q_start(std::size_t b) const {
        if (has_starts) return starts[b];
        const bool at_end =
            start == QueryStart::end || (start == QueryStart::automatic && keys == Layout::paged);
        return at_end ? kv_lens[b] - q_lens[b] : 0;
    }
    std::int64_t q_row(std::size_t b, std::int64_t q) const {
        return queries == Layout::ragged ? cu_q[b] + q : q;
    }
    std::int64_t kv_row(std::size_t b, std::int64_t kv) const {
        if (keys == Layout::dense) return kv;
        if (keys == Layout::ragged) return cu_k[b] + kv;
        const auto page = static_cast<std::size_t>(kv / page_size);
        const std::int64_t id = by_table ? table[b * static_cast<std::size_t>(max_pages) + page]
                                         : indices[static_cast<std::size_t>(indptr[b]) + page];
        return id * page_size + kv % page_size;
    }
    // Of memory: dense tensors have a batch.
    std::int64_t q_memory_row(std::size_t b, std::int64_t q) const {
        return queries == Layout::dense ? static_cast<std::int64_t>(b) * most(q_rows) + q
                                        : q_row(b, q);
    }
    std::int64_t kv_memory_row(std::size_t b, std::int64_t kv) const {
        return keys == Layout::dense ? static_cast<std::int64_t>(b) * most(kv_rows) + kv
                                     : kv_row(b, kv);
    }
    std::int64_t q_total() const {
        return queries == Layout::dense ? batch() * most(q_rows) : cu_q.back() + 3;
    }
    std::int64_t kv_total() const {
        if (keys == Layout::paged) return pages * page_size;
        return keys == Layout::dense ? batch() * most(kv_rows) : cu_k.back() + 2;
    }
    Lengths lengths() const {
        Lengths lengths;
        if (queries == Layout::ragged) lengths.cu_seqlens_q = cu_q;
        if (keys == Layout::ragged) lengths.cu_seqlens_k = cu_k;
        if (q_lens != q_rows || queries == Layout::dense) lengths.seqused_q = q_lens;
        if (kv_lens != kv_rows || keys == Layout::dense || by_table) lengths.seqused_k = kv_lens;
        lengths.query_start = start;
        if (has_starts) lengths.query_starts = starts;
        if (keys != Layout::paged) return lengths;
        lengths.page_size = page_size;
        lengths.pages = pages;
        if (by_table) {
            lengths.page_table = table;
        } else {
            lengths.page_indptr = indptr;
            lengths.page_indices = indices;
            lengths.last_page_len = last;
            lengths.seqused_k = {};
        }
        return lengths;
    }
    Lengths later() const {
        return {.page_size = page_size, .pages = pages, .query_start = start, .on_device = true};
    }
    Sizes sizes() const {
        // Dense tensors have these lengths; of others they are the most.
        return {.batch = batch(),
                .heads = heads,
                .kv_heads = kv_heads,
                .q_len = queries == Layout::dense ? most(q_rows) : most(q_lens),
                .kv_len = keys == Layout::dense ? most(kv_rows) : most(kv_lens)};
    }
};

// [rows, heads, columns] of numbers, and its bytes with a view of the case's layout.
struct Rows {
    std::int64_t rows = 0, heads = 1, columns = 1;
    std::vector<double> numbers;
    double& at(std::int64_t row, std::int64_t head, std::int64_t column = 0) {
        return numbers[static_cast<std::size_t>((row * heads + head) * columns + column)];
    }
    double at(std::int64_t row, std::int64_t head, std::int64_t column = 0) const {
        return numbers[static_cast<std::size_t>((row * heads + head) * columns + column)];
    }
};
Rows filled(std::int64_t rows, std::int64_t heads, std::int64_t columns, double value) {
    return {rows, heads, columns,
            std::vector<double>(static_cast<std::size_t>(rows * heads * columns), value)};
}

DeviceMemory memory_of(Device device, std::size_t bytes) {
    // An absent tensor is told by a null pointer, so that an empty one needs some.
    auto memory = DeviceMemory::allocate(device, bytes + 64);
    REQUIRE_MESSAGE(memory.has_value(), memory.error().message);
    return std::move(*memory);
}

class Memory {
  public:
    // `page`: of so many slots, with heads before slots.
    Memory(Device device, const Rows& rows, DType dtype, std::int64_t page = 0)
        : dtype_(dtype), rows_(rows.rows), heads_(rows.heads), columns_(rows.columns), page_(page),
          bytes_(rows.numbers.size() * size_of(dtype)), memory_(memory_of(device, bytes_.size())) {
        for (std::size_t i = 0; i < rows.numbers.size(); ++i)
            test::store(dtype_, &bytes_[place(i) * size_of(dtype_)], rows.numbers[i]);
        REQUIRE(memory_.upload(bytes_.data(), bytes_.size()).has_value());
    }
    Rows get() {
        REQUIRE(memory_.download(bytes_.data(), bytes_.size()).has_value());
        Rows rows = filled(rows_, heads_, columns_, 0);
        for (std::size_t i = 0; i < rows.numbers.size(); ++i)
            rows.numbers[i] = test::load(dtype_, &bytes_[place(i) * size_of(dtype_)]);
        return rows;
    }
    // batch: of dense tensors; page: of paged ones. Neither: ragged.
    TensorView view(std::int64_t batch, std::int64_t page) {
        TensorView view;
        view.data = memory_.data();
        view.dtype = dtype_;
        const std::int64_t row = heads_ * columns_;
        if (page > 0) {
            view.rank = 4;
            view.shape = {rows_ / page, page, heads_, columns_};
            view.strides = {page * row, row, columns_, 1};
            if (page_ > 0) view.strides = {page * row, columns_, page * columns_, 1};
        } else if (batch >= 0) {
            const std::int64_t length = batch > 0 ? rows_ / batch : 0;
            view.rank = 4;
            view.shape = {batch, heads_, length, columns_};
            view.strides = {length * row, columns_, row, 1};
        } else {
            view.rank = 3;
            view.shape = {rows_, heads_, columns_};
            view.strides = {row, columns_, 1};
        }
        return view;
    }
    TensorView lse_view(std::int64_t batch) {
        TensorView view = this->view(batch, 0);
        --view.rank;
        return view;
    }

  private:
    // Of the i-th number of rows.
    std::size_t place(std::size_t i) const {
        if (page_ == 0) return i;
        const auto number = static_cast<std::int64_t>(i);
        const std::int64_t column = number % columns_, head = number / columns_ % heads_;
        const std::int64_t row = number / columns_ / heads_;
        return static_cast<std::size_t>(
            ((row / page_ * heads_ + head) * page_ + row % page_) * columns_ + column);
    }

    DType dtype_;
    std::int64_t rows_, heads_, columns_, page_;
    std::vector<std::byte> bytes_;
    DeviceMemory memory_;
};

struct Inputs {
    Rows q, k, v, d_out, d_lse;
    Table t, s;
    // Of keys and values in a narrow type: what k and v are before scales, and those.
    Rows k_stored = {}, v_stored = {};
    std::vector<float> k_scales = {}, v_scales = {};
};
struct Outputs {
    Rows o, lse, dq, dk, dv;
    Table dt, ds;
    Table dt_terms = {}; // of the reference: the sums of absolute values of what dt is the sum of
    Rows max_scores = {};
};

// What nobody may read is NaN.
Inputs inputs_of(const Case& one, Random& random) {
    Inputs in{filled(one.q_total(), one.heads, one.d, kNan),
              filled(one.kv_total(), one.kv_heads, one.d, kNan),
              filled(one.kv_total(), one.kv_heads, one.dv, kNan),
              filled(one.q_total(), one.heads, one.dv, kNan),
              filled(one.q_total(), one.heads, 1, kNan),
              {},
              {}};
    const auto fill = [&](Rows& rows, std::int64_t row) {
        for (std::int64_t head = 0; head < rows.heads; ++head)
            for (std::int64_t column = 0; column < rows.columns; ++column)
                rows.at(row, head, column) = random.real();
    };
    for (std::size_t b = 0; b < one.q_lens.size(); ++b) {
        for (std::int64_t q = 0; q < one.q_lens[b]; ++q)
            for (Rows* rows : {&in.q, &in.d_out, &in.d_lse})
                fill(*rows, one.q_memory_row(b, q));
        for (std::int64_t kv = 0; kv < one.kv_lens[b]; ++kv)
            for (Rows* rows : {&in.k, &in.v})
                fill(*rows, one.kv_memory_row(b, kv));
    }
    std::int64_t elements = kTable;
    using Index = Mod::Index;
    if (one.mod->index == Index::none) elements = 0;
    if (one.mod->index == Index::head) elements = one.heads;
    if (one.mod->index == Index::request) elements = one.batch();
    if (one.mod->index == Index::query_row) elements = std::max<std::int64_t>(one.q_total(), 1);
    if (one.mod->index == Index::key_row) elements = std::max<std::int64_t>(one.kv_total(), 1);
    for (std::int64_t i = 0; i < elements; ++i)
        in.t.push_back(one.mod->is_integer
                           ? static_cast<double>(random.integer(0, 3))
                           : random.real() / (one.mod->index == Index::head ? 16 : 2));
    if (one.sink == nullptr) return in;
    const std::int64_t last = one.sinks_element(one.batch(), one.heads, one.q_total());
    // As much as many keys together, or little.
    for (std::int64_t i = 0; i < std::max<std::int64_t>(last, 1); ++i)
        in.s.push_back(random.real() + 3);
    return in;
}

double scale_of(const Case& one) { return 0.5 / std::sqrt(static_cast<double>(one.d)); }

Outputs reference(const Case& one, const Inputs& in) {
    Outputs out{filled(one.q_total(), one.heads, one.dv, 0),
                filled(one.q_total(), one.heads, 1, -kInfinity),
                filled(one.q_total(), one.heads, one.d, 0),
                filled(one.kv_total(), one.kv_heads, one.d, 0),
                filled(one.kv_total(), one.kv_heads, one.dv, 0),
                Table(in.t.size(), 0),
                Table(in.s.size(), 0),
                Table(in.t.size(), 0),
                filled(one.q_total(), one.heads, 1, -kInfinity)};
    const double scale = scale_of(one);
    for (std::size_t b = 0; b < one.q_lens.size(); ++b)
        for (std::int64_t h = 0; h < one.heads; ++h)
            for (std::int64_t q = 0; q < one.q_lens[b]; ++q) {
                const std::int64_t h_kv = h / (one.heads / one.kv_heads);
                const std::int64_t row = one.q_memory_row(b, q), keys = one.kv_lens[b];
                std::vector<Modified> scores(static_cast<std::size_t>(keys));
                double maximum = -kInfinity;
                for (std::int64_t kv = 0; kv < keys; ++kv) {
                    const At at{static_cast<std::int64_t>(b),
                                h,
                                h_kv,
                                q + one.q_start(b),
                                kv,
                                one.q_row(b, q),
                                one.kv_row(b, kv),
                                one.q_lens[b],
                                keys};
                    Modified& score = scores[static_cast<std::size_t>(kv)];
                    score = {-kInfinity, 0};
                    if (!one.mod->visible(at, in.t)) continue;
                    const double
                        *x = &in.q.numbers[static_cast<std::size_t>((row * one.heads + h) * one.d)],
                        *y = &in.k.numbers[static_cast<std::size_t>(
                            (one.kv_memory_row(b, kv) * one.kv_heads + h_kv) * one.d)];
                    score =
                        one.mod->score(at, scale * std::inner_product(x, x + one.d, y, 0.0), in.t);
                    maximum = std::max(maximum, score.value);
                }
                if (maximum == -kInfinity) continue;
                double sum = 0;
                for (const Modified& score : scores)
                    sum += std::exp(score.value - maximum);
                out.lse.at(row, h) = maximum + std::log(sum);
                out.max_scores.at(row, h) = maximum;
                const At at{static_cast<std::int64_t>(b),
                            h,
                            h_kv,
                            q + one.q_start(b),
                            0,
                            one.q_row(b, q),
                            0,
                            one.q_lens[b],
                            keys};
                std::size_t element = 0;
                double of_sink = 0;
                const double of_keys = sum;
                if (one.sink != nullptr) {
                    element = static_cast<std::size_t>(one.sinks_element(at.b, h, at.q_row));
                    of_sink = std::exp(one.sink->value(at, in.s[element]) - maximum);
                    sum += of_sink;
                }
                for (std::int64_t kv = 0; kv < keys; ++kv) {
                    const double p =
                        std::exp(scores[static_cast<std::size_t>(kv)].value - maximum) / sum;
                    if (p == 0) continue;
                    for (std::int64_t d = 0; d < one.dv; ++d)
                        out.o.at(row, h, d) += p * in.v.at(one.kv_memory_row(b, kv), h_kv, d);
                }
                if (!one.backward) continue;
                double delta = 0;
                for (std::int64_t d = 0; d < one.dv; ++d)
                    delta += out.o.at(row, h, d) * in.d_out.at(row, h, d);
                if (one.sink != nullptr)
                    out.ds[element] -= of_sink / sum * delta * one.sink->slope(at);
                for (std::int64_t kv = 0; kv < keys; ++kv) {
                    const Modified& score = scores[static_cast<std::size_t>(kv)];
                    const double weight = std::exp(score.value - maximum), p = weight / sum;
                    if (weight == 0) continue;
                    const std::int64_t key = one.kv_memory_row(b, kv);
                    double dp = 0;
                    for (std::int64_t d = 0; d < one.dv; ++d) {
                        dp += in.d_out.at(row, h, d) * in.v.at(key, h_kv, d);
                        out.dv.at(key, h_kv, d) += p * in.d_out.at(row, h, d);
                    }
                    const double ds = p * (dp - delta) +
                                      (one.has_d_lse ? in.d_lse.at(row, h) * weight / of_keys : 0);
                    if (score.element >= 0) {
                        const auto element_of_table = static_cast<std::size_t>(score.element);
                        out.dt[element_of_table] += ds * score.partial;
                        out.dt_terms[element_of_table] += std::fabs(ds * score.partial);
                    }
                    for (std::int64_t d = 0; d < one.d; ++d) {
                        out.dq.at(row, h, d) += scale * ds * score.slope * in.k.at(key, h_kv, d);
                        out.dk.at(key, h_kv, d) += scale * ds * score.slope * in.q.at(row, h, d);
                    }
                }
            }
    return out;
}

// A buffer of one dim, and its gradient.
class Numbers {
  public:
    Numbers(Device device, const Table& table, bool are_integers)
        : count_(table.size()), are_integers_(are_integers), values_(memory_of(device, 4 * count_)),
          gradients_(memory_of(device, 4 * count_)) {
        const std::vector<float> reals(table.begin(), table.end());
        const std::vector<std::int32_t> integers(table.begin(), table.end());
        const void* from = are_integers ? static_cast<const void*>(integers.data()) : reals.data();
        REQUIRE(values_.upload(from, 4 * count_).has_value());
        const std::vector<float> before(count_, 7);
        REQUIRE(gradients_.upload(before.data(), 4 * count_).has_value());
    }
    TensorView values() const { return view(values_); }
    TensorView gradients() const { return view(gradients_); }
    Table gradient() const {
        std::vector<float> numbers(count_);
        REQUIRE(gradients_.download(numbers.data(), 4 * count_).has_value());
        return {numbers.begin(), numbers.end()};
    }

  private:
    TensorView view(const DeviceMemory& memory) const {
        return TensorView::contiguous(memory.data(), are_integers_ ? DType::i32 : DType::f32,
                                      {static_cast<std::int64_t>(count_)});
    }

    std::size_t count_;
    bool are_integers_;
    DeviceMemory values_, gradients_;
};

// Lengths in a device's memory.
class DeviceLengths {
  public:
    DeviceLengths(Device device, const Lengths& lengths) : device_(device) {
        add(lengths.cu_seqlens_q, tensors.cu_seqlens_q);
        add(lengths.cu_seqlens_k, tensors.cu_seqlens_k);
        add(lengths.seqused_q, tensors.seqused_q);
        add(lengths.seqused_k, tensors.seqused_k);
        add(lengths.page_table, tensors.page_table);
        add(lengths.page_indptr, tensors.page_indptr);
        add(lengths.page_indices, tensors.page_indices);
        add(lengths.last_page_len, tensors.last_page_len);
        add(lengths.query_starts, tensors.query_starts);
    }
    LengthTensors tensors;

  private:
    void add(std::span<const std::int32_t> numbers, TensorView& to) {
        if (numbers.empty()) return;
        memories_.push_back(memory_of(device_, numbers.size_bytes()));
        REQUIRE(memories_.back().upload(numbers.data(), numbers.size_bytes()).has_value());
        to = TensorView::contiguous(memories_.back().data(), DType::i32,
                                    {static_cast<std::int64_t>(numbers.size())});
    }

    Device device_;
    std::vector<DeviceMemory> memories_;
};

// [first, heads] of what keys or values are multiplied by: first is pages, or requests.
std::int64_t first_of_scales(const Case& one) {
    return one.keys == Layout::paged ? one.pages : one.batch();
}
std::vector<std::int64_t> shape_of_scales(const Case& one) {
    switch (one.scales) {
    case Case::Scales::none:
    case Case::Scales::one: return {};
    case Case::Scales::heads: return {one.kv_heads};
    case Case::Scales::pages: return {first_of_scales(one), 1};
    case Case::Scales::all: break;
    }
    return {first_of_scales(one), one.kv_heads};
}
class Scales {
  public:
    Scales(Device device, const Case& one, const std::vector<float>& numbers)
        : shape_(shape_of_scales(one)), is_given_(!numbers.empty()),
          memory_(memory_of(device, 4 * numbers.size())) {
        REQUIRE(memory_.upload(numbers.data(), 4 * numbers.size()).has_value());
    }
    TensorView view() const {
        if (!is_given_) return {};
        return TensorView::contiguous(memory_.data(), DType::f32, shape_);
    }

  private:
    std::vector<std::int64_t> shape_;
    bool is_given_;
    DeviceMemory memory_;
};

bool is_on_gpu(Device device) { return device.kind == Device::Kind::cuda; }

CompileOptions options_of(const Case& one, bool is_dense) {
    return {.dtype = one.dtype,
            .kv_dtype = is_dense ? std::nullopt : one.kv_dtype,
            .head_dim = static_cast<int>(one.d),
            .head_dim_v = static_cast<int>(one.dv),
            .query_layout = is_dense ? Layout::dense : one.queries,
            .key_layout = is_dense ? Layout::dense : one.keys,
            .device = one.device,
            .backward = is_dense || one.backward,
            .forward_kernel = one.forward_kernel,
            .backward_kernel = is_dense ? BackwardKernel::automatic : one.backward_kernel,
            .deterministic = one.deterministic,
            .batch_invariant = one.batch_invariant,
            .max_scores = one.max_scores,
            .part_of_heads = one.global_heads > 0,
            .cache = {.disk = is_on_gpu(one.device)}};
}

Kernel kernel_of(const Case& one, bool is_dense) {
    auto kernel = compile(one.text(), options_of(one, is_dense));
    REQUIRE_MESSAGE(kernel.has_value(), kernel.error().message);
    return *kernel;
}

// Of a plan's calls.
class Called {
  public:
    Called(Device device, const Plan& plan)
        : memory_(memory_of(device, plan.workspace_bytes() + 256)) {
        // What is left of calls before is no zeros.
        REQUIRE(memory_.fill(0xff).has_value());
        const auto at = (reinterpret_cast<std::uintptr_t>(memory_.data()) + 255) / 256 * 256;
        workspace = {reinterpret_cast<void*>(at), plan.workspace_bytes()};
    }
    Workspace workspace;

  private:
    DeviceMemory memory_;
};

#define REQUIRE_OK(result)                                                                         \
    do {                                                                                           \
        auto&& done_ = (result);                                                                   \
        REQUIRE_MESSAGE(done_.has_value(), done_.error().message);                                 \
    } while (false)

Outputs run(const Case& one, const Inputs& in) {
    const Kernel kernel = kernel_of(one, false);
    const std::int64_t q_batch = one.queries == Layout::dense ? one.batch() : -1;
    const std::int64_t k_batch = one.keys == Layout::dense ? one.batch() : -1;
    const std::int64_t heads_first = one.heads_first ? one.page_size : 0;
    const Device on = one.device;
    const DType of_keys = one.kv_dtype.value_or(one.dtype);
    Memory q(on, in.q, one.dtype), k(on, one.kv_dtype ? in.k_stored : in.k, of_keys, heads_first),
        v(on, one.kv_dtype ? in.v_stored : in.v, of_keys, heads_first);
    const Scales k_scale(on, one, in.k_scales), v_scale(on, one, in.v_scales);
    Memory d_out(on, in.d_out, one.dtype), d_lse(on, in.d_lse, DType::f32);
    // Gradients of buffers are closer with o in f32.
    Memory o(on, filled(in.q.rows, one.heads, one.dv, 7), one.backward ? DType::f32 : one.dtype);
    Memory lse(on, filled(in.q.rows, one.heads, 1, 7), DType::f32);
    Memory max_scores(on, filled(in.q.rows, one.heads, 1, 7), DType::f32);
    const Numbers t(on, in.t, one.mod->is_integer), sink(on, in.s, false);
    std::vector<NamedTensor> buffers, gradients;
    if (one.mod->index != Mod::Index::none) {
        buffers.push_back({"t", t.values()});
        if (!one.mod->is_integer) gradients.push_back({"t", t.gradients()});
    }
    if (one.sink != nullptr) {
        buffers.push_back({"s", sink.values()});
        gradients.push_back({"s", sink.gradients()});
    }
    const auto q_view = [&](Memory& memory) { return memory.view(q_batch, 0); };
    const auto k_view = [&](Memory& memory) { return memory.view(k_batch, one.page_size); };
    ForwardTensors forward{.q = q_view(q),
                           .k = k_view(k),
                           .v = k_view(v),
                           .o = q_view(o),
                           .lse = lse.lse_view(q_batch),
                           .k_scale = k_scale.view(),
                           .v_scale = v_scale.view(),
                           .max_scores =
                               one.max_scores ? max_scores.lse_view(q_batch) : TensorView{}};
    PlanOptions options{.scale = scale_of(one),
                        .lengths = one.by_device ? one.later() : one.lengths(),
                        .cpu_threads = {.count = one.threads},
                        .forward = &forward};
    if (one.global_heads > 0) {
        options.head_offset = one.head_offset;
        options.global_heads = one.global_heads;
        options.global_kv_heads = one.global_kv_heads;
    }
    auto plan = kernel.plan(one.sizes(), buffers, {}, options);
    REQUIRE_OK(plan);
    const DeviceLengths lengths(on, one.lengths());
    if (one.by_device && !(one.by_call() && is_on_gpu(on)))
        REQUIRE_OK(kernel.update(*plan, lengths.tensors));
    forward.lengths = one.by_call() ? &lengths.tensors : nullptr;
    const Called call(on, *plan);
    REQUIRE_OK(kernel.forward(*plan, forward, buffers, call.workspace));
    Outputs out{.o = o.get(), .lse = lse.get(), .dq = {}, .dk = {}, .dv = {}, .dt = {}, .ds = {}};
    out.max_scores = max_scores.get();
    if (!one.backward) return out;
    const DType of_gradients = one.narrow_gradients ? one.dtype : DType::f32;
    Memory dq(on, filled(one.q_total(), one.heads, one.d, 7), of_gradients);
    Memory dk(on, filled(one.kv_total(), one.kv_heads, one.d, 7), of_gradients);
    Memory dv(on, filled(one.kv_total(), one.kv_heads, one.dv, 7), of_gradients);
    REQUIRE_OK(kernel.backward(*plan,
                               {.q = q_view(q),
                                .k = k_view(k),
                                .v = k_view(v),
                                .o = q_view(o),
                                .lse = lse.lse_view(q_batch),
                                .d_out = q_view(d_out),
                                .d_lse = one.has_d_lse ? d_lse.lse_view(q_batch) : TensorView{},
                                .dq = q_view(dq),
                                .dk = k_view(dk),
                                .dv = k_view(dv),
                                .lengths = forward.lengths},
                               buffers, gradients, call.workspace));
    out.dq = dq.get();
    out.dk = dk.get();
    out.dv = dv.get();
    out.dt = t.gradient();
    out.ds = sink.gradient();
    return out;
}

// Relative to the largest number that is expected. A sum whose terms cancel inherits their
// rounding: a tenth of the tolerance holds for `terms`, the sums of their absolute values.
void check_rows(const Case& one, const char* name, const std::vector<double>& got,
                const std::vector<double>& expected, double tolerance, const Table& terms = {}) {
    REQUIRE(got.size() == expected.size());
    double largest = 1;
    for (const double value : expected)
        if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
    for (const double value : terms)
        largest = std::max(largest, 0.1 * value);
    std::int64_t wrong = 0;
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double off = std::fabs(got[i] - expected[i]);
        const bool same = got[i] == expected[i] || off <= tolerance * largest;
        wrong += same ? 0 : 1;
        if (!same && !(off < worst)) worst = off;
    }
    CHECK_MESSAGE(wrong == 0, name << " of " << one.text() << ": " << wrong << " of " << got.size()
                                   << " wrong, by " << worst << " of " << largest);
}

double tolerance_of(DType dtype) {
    return dtype == DType::f32 ? 2e-5 : dtype == DType::f16 ? 2e-3 : 1.2e-2;
}

// Rows of the requests alone: what nobody owns keeps what was there.
struct Owned {
    std::vector<bool> used, unused; // by row of memory
};
Owned owned_queries(const Case& one) {
    Owned owned{std::vector<bool>(static_cast<std::size_t>(one.q_total())),
                std::vector<bool>(static_cast<std::size_t>(one.q_total()))};
    for (std::size_t b = 0; b < one.q_lens.size(); ++b)
        for (std::int64_t q = 0; q < one.q_rows[b]; ++q)
            (q < one.q_lens[b] ? owned.used
                               : owned.unused)[static_cast<std::size_t>(one.q_memory_row(b, q))] =
                true;
    if (one.queries == Layout::dense)
        for (std::size_t row = 0; row < owned.used.size(); ++row)
            owned.unused[row] = !owned.used[row];
    return owned;
}
Owned owned_keys(const Case& one) {
    Owned owned{std::vector<bool>(static_cast<std::size_t>(one.kv_total())),
                std::vector<bool>(static_cast<std::size_t>(one.kv_total()))};
    for (std::size_t b = 0; b < one.kv_lens.size(); ++b)
        for (std::int64_t kv = 0; kv < one.kv_rows[b]; ++kv)
            (kv < one.kv_lens[b]
                 ? owned.used
                 : owned.unused)[static_cast<std::size_t>(one.kv_memory_row(b, kv))] = true;
    if (one.keys == Layout::dense)
        for (std::size_t row = 0; row < owned.used.size(); ++row)
            owned.unused[row] = !owned.used[row];
    return owned;
}
// What others were before: 7.
void expect_untouched(Rows& rows, const Owned& owned) {
    for (std::int64_t row = 0; row < rows.rows; ++row)
        if (!owned.used[static_cast<std::size_t>(row)] &&
            !owned.unused[static_cast<std::size_t>(row)])
            for (std::int64_t i = 0; i < rows.heads * rows.columns; ++i)
                rows.numbers[static_cast<std::size_t>(row * rows.heads * rows.columns + i)] = 7;
}

void check_outputs(const Case& one, const Outputs& got, Outputs expected) {
    const Owned queries = owned_queries(one);
    for (Rows* rows : {&expected.o, &expected.lse, &expected.dq, &expected.max_scores})
        expect_untouched(*rows, queries);
    const double tolerance = tolerance_of(one.dtype);
    check_rows(one, "o", got.o.numbers, expected.o.numbers, tolerance);
    check_rows(one, "lse", got.lse.numbers, expected.lse.numbers, 2e-5);
    if (one.max_scores)
        check_rows(one, "max_scores", got.max_scores.numbers, expected.max_scores.numbers, 2e-5);
    if (!one.backward) return;
    const Owned keys = owned_keys(one);
    for (Rows* rows : {&expected.dk, &expected.dv})
        expect_untouched(*rows, keys);
    check_rows(one, "dq", got.dq.numbers, expected.dq.numbers, 2 * tolerance);
    check_rows(one, "dk", got.dk.numbers, expected.dk.numbers, 2 * tolerance);
    check_rows(one, "dv", got.dv.numbers, expected.dv.numbers, 2 * tolerance);
    if (one.mod->index != Mod::Index::none && !one.mod->is_integer)
        check_rows(one, "dt", got.dt, expected.dt, 4 * tolerance, expected.dt_terms);
    if (one.sink != nullptr) check_rows(one, "ds", got.ds, expected.ds, 4 * tolerance);
}

// The same by the dense kernel, a request at a time. Nothing where that cannot say what this does.
void check_dense(const Case& one, const Inputs& in, const Outputs& got) {
    // Q_LEN of the dense kernel would be that of the whole sequence.
    const bool reads_q_len = one.text().find("Q_LEN") != std::string::npos;
    using Index = Mod::Index;
    if (one.mod->index == Index::rows) return; // its rows begin at 0
    const Kernel kernel = kernel_of(one, true);
    Outputs expected = got;
    expected.dt.assign(got.dt.size(), 0);
    expected.ds.assign(got.ds.size(), 0);
    for (std::size_t b = 0; b < one.q_lens.size(); ++b) {
        const std::int64_t n = one.q_lens[b], m = one.kv_lens[b], start = one.q_start(b);
        if (start < 0 || (reads_q_len && start > 0)) return;
        if (n == 0 || m == 0) continue;
        const auto gather = [&](const Rows& from, std::int64_t count, bool of_keys) {
            Rows to = filled(count, from.heads, from.columns, 0);
            for (std::int64_t row = 0; row < count; ++row)
                for (std::int64_t i = 0; i < from.heads * from.columns; ++i)
                    to.numbers[static_cast<std::size_t>(row * from.heads * from.columns + i)] =
                        from.numbers[static_cast<std::size_t>(
                            (of_keys ? one.kv_memory_row(b, row) : one.q_memory_row(b, row)) *
                                from.heads * from.columns +
                            i)];
            return to;
        };
        const auto scatter = [&](const Rows& from, Rows& to, bool of_keys) {
            for (std::int64_t row = 0; row < from.rows; ++row)
                for (std::int64_t i = 0; i < from.heads * from.columns; ++i)
                    to.numbers[static_cast<std::size_t>(
                        (of_keys ? one.kv_memory_row(b, row) : one.q_memory_row(b, row)) *
                            from.heads * from.columns +
                        i)] =
                        from.numbers[static_cast<std::size_t>(row * from.heads * from.columns + i)];
        };
        // What of the table the request reads, by the dense kernel's indices.
        Table own;
        std::vector<std::int64_t> places;
        const Index index = one.mod->index;
        const std::int64_t count = index == Index::request     ? 1
                                   : index == Index::query_row ? start + n
                                   : index == Index::key_row
                                       ? m
                                       : static_cast<std::int64_t>(in.t.size());
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t place = index == Index::request ? static_cast<std::int64_t>(b)
                                       : index == Index::query_row
                                           ? one.q_row(b, std::max<std::int64_t>(i - start, 0))
                                       : index == Index::key_row ? one.kv_row(b, i)
                                                                 : i;
            places.push_back(place);
            own.push_back(in.t[static_cast<std::size_t>(place)]);
        }
        const Device on = one.device;
        Memory q(on, gather(in.q, n, false), one.dtype), k(on, gather(in.k, m, true), one.dtype),
            v(on, gather(in.v, m, true), one.dtype),
            d_out(on, gather(in.d_out, n, false), one.dtype);
        Memory o(on, filled(n, one.heads, one.dv, 7), one.backward ? DType::f32 : one.dtype);
        Memory lse(on, filled(n, one.heads, 1, 7), DType::f32);
        Memory d_lse(on, gather(in.d_lse, n, false), DType::f32);
        const Numbers t(on, own, one.mod->is_integer);
        std::vector<NamedTensor> buffers, gradients;
        if (index != Index::none) {
            buffers.push_back({"t", t.values()});
            if (!one.mod->is_integer) gradients.push_back({"t", t.gradients()});
        }
        Table own_sinks;
        std::vector<std::size_t> sink_places;
        if (one.sink != nullptr) {
            const bool by_row = one.sink->index == Sink::Index::query_row;
            const std::int64_t elements = one.sinks_element(1, one.heads, start + n);
            for (std::int64_t i = 0; i < elements; ++i) {
                const std::int64_t row =
                    by_row ? one.q_row(b, std::max<std::int64_t>(i - start, 0)) : 0;
                sink_places.push_back(static_cast<std::size_t>(
                    one.sinks_element(static_cast<std::int64_t>(b), i, row)));
                own_sinks.push_back(in.s[sink_places.back()]);
            }
        }
        const Numbers sink(on, own_sinks, false);
        if (one.sink != nullptr) {
            buffers.push_back({"s", sink.values()});
            gradients.push_back({"s", sink.gradients()});
        }
        auto plan =
            kernel.plan({1, one.heads, one.kv_heads, n, m}, buffers, {},
                        {.scale = scale_of(one), .q_offset = start, .cpu_threads = {.count = 1}});
        REQUIRE_OK(plan);
        const Called call(on, *plan);
        REQUIRE_OK(kernel.forward(*plan,
                                  {.q = q.view(1, 0),
                                   .k = k.view(1, 0),
                                   .v = v.view(1, 0),
                                   .o = o.view(1, 0),
                                   .lse = lse.lse_view(1)},
                                  buffers, call.workspace));
        scatter(o.get(), expected.o, false);
        scatter(lse.get(), expected.lse, false);
        if (!one.backward) continue;
        Memory dq(on, filled(n, one.heads, one.d, 7), DType::f32),
            dk(on, filled(m, one.kv_heads, one.d, 7), DType::f32),
            dv(on, filled(m, one.kv_heads, one.dv, 7), DType::f32);
        REQUIRE_OK(kernel.backward(*plan,
                                   {.q = q.view(1, 0),
                                    .k = k.view(1, 0),
                                    .v = v.view(1, 0),
                                    .o = o.view(1, 0),
                                    .lse = lse.lse_view(1),
                                    .d_out = d_out.view(1, 0),
                                    .d_lse = one.has_d_lse ? d_lse.lse_view(1) : TensorView{},
                                    .dq = dq.view(1, 0),
                                    .dk = dk.view(1, 0),
                                    .dv = dv.view(1, 0)},
                                   buffers, gradients, call.workspace));
        scatter(dq.get(), expected.dq, false);
        scatter(dk.get(), expected.dk, true);
        scatter(dv.get(), expected.dv, true);
        const Table d_table = t.gradient(), d_sinks = sink.gradient();
        for (std::size_t i = 0; i < d_table.size(); ++i)
            if (!expected.dt.empty())
                expected.dt[static_cast<std::size_t>(places[i])] += d_table[i];
        for (std::size_t i = 0; i < sink_places.size(); ++i)
            expected.ds[sink_places[i]] += d_sinks[i];
    }
    check_outputs(one, got, std::move(expected));
}

// Lengths whose scores are no more than `budget` elements in all.
// Of decoding there are few queries and keys enough to be divided. page_size: 0 for one of several.
Case random_case(Random& random, std::int64_t budget, std::int64_t most_requests,
                 bool is_decode = false, std::int64_t most_queries = 200,
                 const std::vector<Mod>& all_mods = mods(), std::int64_t page_size = 0) {
    Case one;
    const auto which =
        static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(all_mods.size()) - 1));
    one.mod = &all_mods[which];
    // A sink follows from the mod too.
    if (random.chance(50)) one.sink = &sinks()[which % sinks().size()];
    // Few kernels: their types and head dims follow from the mod and the layouts.
    const int kind = static_cast<int>(random.integer(0, 5));
    one.keys = kind < 2 ? Layout::ragged : kind < 5 ? Layout::paged : Layout::dense;
    one.queries = kind == 4 ? Layout::dense : Layout::ragged;
    constexpr std::int64_t kDims[] = {40, 64, 128, 80, 96, 256, 72};
    if (which % 3 != 0 && kind > 3) one.queries = Layout::ragged, one.keys = Layout::paged;
    one.backward = one.keys == Layout::ragged;
    one.d = kDims[which % std::size(kDims)];
    one.dv = which % 3 == 0 ? 64 : one.d;
    constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
    one.dtype = kTypes[which % 3];
    one.max_scores = which % 2 == 1;
    one.kv_heads = random.integer(1, 3);
    constexpr std::array<std::int64_t, 7> kGroups = {1, 1, 2, 3, 4, 7, 16};
    one.heads = one.kv_heads * random.pick(kGroups);
    budget /= one.heads;
    if (is_decode) one.heads = one.kv_heads * random.integer(1, 4);
    const std::int64_t requests = random.integer(is_decode ? 1 : 0, most_requests);
    one.has_d_lse = one.backward && random.chance(50);
    one.threads = random.chance(10) ? 2 : 1;
    one.has_starts = random.chance(20);
    one.start = static_cast<QueryStart>(random.integer(0, 2));
    one.by_table = random.chance(50);
    one.heads_first = one.keys == Layout::paged && random.chance(30);
    constexpr std::array<std::int64_t, 5> kPages = {1, 3, 16, 64, 256};
    if (one.keys == Layout::paged) one.page_size = page_size > 0 ? page_size : random.pick(kPages);
    one.cu_q = one.cu_k = {0};
    one.indptr = {0};
    for (std::int64_t b = 0; b < requests; ++b) {
        std::int64_t n = random.chance(60) ? random.integer(0, 3) : random.integer(0, most_queries);
        std::int64_t m = random.chance(50) ? random.integer(0, 40) : random.integer(0, 700);
        if (n * m > budget) (random.chance(50) ? n : m) = budget / std::max(n, m);
        budget -= n * m;
        if (is_decode) n = random.integer(0, 3), m = random.integer(1000, kTable - 1);
        const bool has_more = random.chance(10);
        one.q_lens.push_back(static_cast<std::int32_t>(n));
        one.kv_lens.push_back(static_cast<std::int32_t>(m));
        one.q_rows.push_back(static_cast<std::int32_t>(n + (has_more ? 2 : 0)));
        one.kv_rows.push_back(static_cast<std::int32_t>(m + (has_more ? 5 : 0)));
        one.cu_q.push_back(one.cu_q.back() + one.q_rows.back());
        one.cu_k.push_back(one.cu_k.back() + one.kv_rows.back());
        one.starts.push_back(static_cast<std::int32_t>(random.integer(-5, 300)));
    }
    one.by_device = random.chance(40);
    if (one.keys != Layout::paged) return one;
    one.kv_rows = one.kv_lens;
    for (const std::int32_t m : one.kv_lens)
        one.max_pages = std::max(one.max_pages, (m + one.page_size - 1) / one.page_size);
    ++one.max_pages;
    // Pages in any order; some that two requests share, which no test writes to.
    std::vector<std::int32_t> ids(static_cast<std::size_t>(one.max_pages * (requests + 1)));
    std::iota(ids.begin(), ids.end(), 0);
    for (std::size_t i = ids.size(); i-- > 1;)
        std::swap(ids[i],
                  ids[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i)))]);
    one.pages = static_cast<std::int64_t>(ids.size());
    std::vector<std::int32_t> seen;
    for (std::int64_t b = 0; b < requests; ++b) {
        const std::int64_t m = one.kv_lens[static_cast<std::size_t>(b)];
        const std::int64_t used = (m + one.page_size - 1) / one.page_size;
        for (std::int64_t i = 0; i < one.max_pages; ++i) {
            if (i >= used) {
                one.table.push_back(-1000); // nobody reads it
                continue;
            }
            std::int32_t page = ids.back();
            ids.pop_back();
            if (!seen.empty() && random.chance(10)) page = random.pick(seen);
            seen.push_back(page);
            one.table.push_back(page);
            one.indices.push_back(page);
        }
        one.indptr.push_back(static_cast<std::int32_t>(one.indices.size()));
        one.last.push_back(
            static_cast<std::int32_t>(used == 0 ? 0 : m - (used - 1) * one.page_size));
    }
    return one;
}

// Fills the cache on disk, each kernel once.
void compile_for(const Case& one, const char* arch, std::vector<std::string>& compiled) {
    CompileOptions options = options_of(one, false);
    options.cache.disk = true;
    const std::string key =
        one.text() + std::string(name(one.queries)) + std::string(name(one.keys)) +
        std::to_string(one.backward) + std::to_string(one.d) +
        std::to_string(static_cast<int>(one.forward_kernel)) +
        std::to_string(static_cast<int>(one.backward_kernel)) + std::to_string(one.deterministic) +
        std::string(name(one.kv_dtype.value_or(one.dtype)));
    if (std::ranges::find(compiled, key) != compiled.end()) return;
    compiled.push_back(key);
    REQUIRE_OK(compile_offline(one.text(), options, arch));
}

void check_case(const Case& one, Random& random) {
    Inputs in = inputs_of(one, random);
    for (Rows* rows : {&in.q, &in.k, &in.v, &in.d_out})
        for (double& value : rows->numbers)
            value = rounded(one.dtype, value);
    for (Table* numbers : {&in.d_lse.numbers, &in.s})
        for (double& value : *numbers)
            value = rounded(DType::f32, value);
    for (double& value : in.t)
        value = one.mod->is_integer ? value : rounded(DType::f32, value);
    const Outputs got = run(one, in);
    check_outputs(one, got, reference(one, in));
    if (!is_on_gpu(one.device)) check_dense(one, in, got);
    if (!one.deterministic) return;
    const Outputs again = run(one, in);
    CHECK(got.dq.numbers == again.dq.numbers);
    CHECK(got.dk.numbers == again.dk.numbers);
    CHECK(got.dv.numbers == again.dv.numbers);
    CHECK(got.dt == again.dt);
    CHECK(got.ds == again.ds);
}

// Of training and prefill: requests that have several tiles of queries, beside some that have few.
Case prefill_case(Random& random) {
    Case one;
    do
        one = random_case(random, 400000, 5, false, 600);
    while (one.keys == Layout::dense || one.queries != Layout::ragged);
    if (one.dtype != DType::f32) return one;
    // Matrix units have no products of floats.
    one.dtype = DType::bf16;
    one.d = one.dv = (one.mod - mods().data()) % 2 == 0 ? 128 : 64;
    return one;
}

// Hopper's kernel alone, whichever there is, or the generic one; and some in a fixed order.
void choose_kernels(std::uint64_t seed, Case& one) {
    constexpr std::int64_t kWidest = 128; // of heads that Hopper's kernels are sure to take
    if (one.keys == Layout::paged) {
        if (seed % 4 != 0 && std::max(one.d, one.dv) <= kWidest)
            one.forward_kernel = ForwardKernel::specialized;
        return;
    }
    if (seed % 4 == 1) one.backward_kernel = BackwardKernel::generic;
    if (seed % 4 >= 2 && std::max(one.d, one.dv) <= kWidest)
        one.backward_kernel = BackwardKernel::specialized;
    one.deterministic = seed % 5 == 0;
    // Under a block mask only split kernels add in an order.
    if (one.deterministic && !supports(one.text(), options_of(one, false), "sm_90a"))
        one.backward_kernel = BackwardKernel::automatic;
}

enum class Requests { mixed, decode, prefill };

// The same requests as on a CPU, and as many again. Of two kernels for a layout, each has some.
void check_on_gpu(std::uint64_t first, std::uint64_t last, Requests kind) {
    const char* arch = std::getenv("FLEXC_TEST_COMPILE");
    if (arch == nullptr && !is_on_gpu(default_device())) return;
    std::vector<std::string> compiled;
    for (std::uint64_t seed = first; seed <= last; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        Case one = kind == Requests::prefill ? prefill_case(random)
                                             : random_case(random, 8000, random.chance(15) ? 40 : 6,
                                                           kind == Requests::decode);
        one.device = Device::cuda(0);
        if (seed % 4 == 0) one.forward_kernel = ForwardKernel::generic;
        one.narrow_gradients = seed % 2 == 0;
        if (kind == Requests::prefill) choose_kernels(seed, one);
        if (arch == nullptr)
            check_case(one, random);
        else
            compile_for(one, arch, compiled);
    }
}

} // namespace

TEST_CASE("random requests, ragged and paged, are what float64 and the dense kernel give") {
    for (std::uint64_t seed = 1; seed <= 250; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        check_case(random_case(random, 8000, random.chance(15) ? 40 : 6), random);
    }
}

TEST_CASE("random requests under masks that hide most tiles are what float64 gives") {
    for (std::uint64_t seed = 3001; seed <= 3160; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        Case one = random_case(random, 400000, 3, false, 400, hiding_mods());
        if (random.chance(40)) one.threads = 2;
        check_case(one, random);
    }
}

TEST_CASE("random requests on a GPU are what float64 gives, 1 to 125") {
    check_on_gpu(1, 125, Requests::mixed);
}
TEST_CASE("random requests on a GPU are what float64 gives, 126 to 250") {
    check_on_gpu(126, 250, Requests::mixed);
}
TEST_CASE("random requests on a GPU are what float64 gives, 4001 to 4125") {
    check_on_gpu(4001, 4125, Requests::mixed);
}
TEST_CASE("random requests on a GPU are what float64 gives, 4126 to 4250") {
    check_on_gpu(4126, 4250, Requests::mixed);
}
TEST_CASE("random requests on a GPU with long caches are what float64 gives") {
    check_on_gpu(2001, 2040, Requests::decode);
}
TEST_CASE("random requests on a GPU with many queries are what float64 gives") {
    check_on_gpu(5001, 5080, Requests::prefill);
}

TEST_CASE("keys of few queries are divided, and parts are merged before the sink") {
    for (std::uint64_t seed = 2001; seed <= 2016; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        check_case(random_case(random, 8000, 3, true), random);
    }
}

TEST_CASE("few queries of many requests, whose heads' keys lie side by side") {
    int cases = 0;
    for (std::uint64_t seed = 6001; cases < 12; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        Case one = random_case(random, 8000, 40, true);
        if (one.keys == Layout::dense || one.kv_heads == 1 || one.batch() < 25) continue;
        ++cases;
        one.backward = one.has_d_lse = false;
        one.dtype =
            std::array{DType::f32, DType::f16, DType::bf16}[static_cast<std::size_t>(cases % 3)];
        check_case(one, random);
    }
}

TEST_CASE("pages of 1,024 slots, which are the most, and of odd numbers") {
    for (const std::int64_t page_size : {1024, 1023, 513, 31})
        for (std::uint64_t seed = 8001, cases = 0; cases < 4; ++seed) {
            CAPTURE(page_size);
            CAPTURE(seed);
            Random random(seed);
            const Case one = random_case(random, 8000, 3, cases % 2 != 0, 200, mods(), page_size);
            if (one.keys != Layout::paged || one.q_total() < 4) continue;
            ++cases;
            check_case(one, random);
        }
}

TEST_CASE("heads before the slots of a page are other strides") {
    int cases = 0;
    for (std::uint64_t seed = 3001; cases < 8; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        Case one = random_case(random, 8000, 4, cases % 2 != 0);
        if (one.keys != Layout::paged || one.kv_heads == 1 || one.page_size < 2 ||
            one.q_total() < 4)
            continue;
        ++cases;
        const Inputs in = inputs_of(one, random);
        one.heads_first = false;
        const Outputs slots_first = run(one, in);
        one.heads_first = true;
        const Outputs heads_first = run(one, in);
        CHECK(slots_first.o.numbers == heads_first.o.numbers);
        CHECK(slots_first.lse.numbers == heads_first.lse.numbers);
    }
}

namespace {

// Keys or values of a narrow type in the place of `rows`, where those are owned.
void narrow(const Case& one, Random& random, Rows& rows, Rows& stored, std::vector<float>& scales) {
    const DType dtype = *one.kv_dtype;
    if (one.scales != Case::Scales::none) {
        std::int64_t count = 1;
        for (const std::int64_t extent : shape_of_scales(one))
            count *= extent;
        for (std::int64_t i = 0; i < count; ++i)
            scales.push_back(static_cast<float>(0.2 + 0.3 * std::fabs(random.real())));
    }
    const auto scale_of_row = [&](std::int64_t first, std::int64_t head) -> double {
        switch (one.scales) {
        case Case::Scales::none: return 1;
        case Case::Scales::one: return scales[0];
        case Case::Scales::heads: return scales[static_cast<std::size_t>(head)];
        case Case::Scales::pages: return scales[static_cast<std::size_t>(first)];
        case Case::Scales::all: break;
        }
        return scales[static_cast<std::size_t>(first * one.kv_heads + head)];
    };
    // Integers have no NaN: where nobody reads there is the largest.
    stored = filled(rows.rows, rows.heads, rows.columns, dtype == DType::i8 ? 127 : kNan);
    std::vector<bool> is_owned(scales.size());
    std::vector<bool> is_done(static_cast<std::size_t>(rows.rows));
    for (std::size_t b = 0; b < one.kv_lens.size(); ++b)
        for (std::int64_t kv = 0; kv < one.kv_lens[b]; ++kv) {
            const std::int64_t row = one.kv_memory_row(b, kv);
            const std::int64_t first =
                one.keys == Layout::paged ? row / one.page_size : static_cast<std::int64_t>(b);
            if (one.scales == Case::Scales::pages) is_owned[static_cast<std::size_t>(first)] = true;
            if (is_done[static_cast<std::size_t>(row)]) continue; // a page of several requests
            is_done[static_cast<std::size_t>(row)] = true;
            for (std::int64_t head = 0; head < rows.heads; ++head)
                for (std::int64_t column = 0; column < rows.columns; ++column) {
                    double value = static_cast<double>(random.integer(-3, 3));
                    if (dtype != DType::i8) {
                        // Of exponents around that of 1.
                        const int low = dtype == DType::e4m3 ? 0x28 : 0x34;
                        const auto code = static_cast<unsigned>(random.integer(low, low + 0x14)) |
                                          (random.chance(50) ? 0x80u : 0u);
                        value = test::from_eight_bits(dtype, code);
                    }
                    stored.at(row, head, column) = value;
                    rows.at(row, head, column) = value * scale_of_row(first, head);
                }
        }
    if (one.scales == Case::Scales::pages)
        for (std::size_t i = 0; i < scales.size(); ++i)
            if (!is_owned[i]) scales[i] = static_cast<float>(kNan);
}

// compile_arch: only whether kernels for it can be made.
void check_narrow_keys(Device device, std::uint64_t first, int count, bool is_decode,
                       const char* compile_arch = nullptr) {
    constexpr std::array<DType, 3> kTypes = {DType::e4m3, DType::e5m2, DType::i8};
    std::vector<std::string> compiled;
    for (int i = 0; i < count; ++i) {
        const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
        CAPTURE(seed);
        Random random(seed);
        Case one;
        do // on a GPU queries have 16 bits
            one = random_case(random, 8000, random.chance(15) ? 40 : 6, is_decode);
        while (is_on_gpu(device) && one.dtype == DType::f32);
        one.device = device;
        one.backward = false;
        one.kv_dtype = kTypes[static_cast<std::size_t>(i) % 3];
        one.scales = static_cast<Case::Scales>(random.integer(0, 4));
        if (first_of_scales(one) == 0) one.scales = Case::Scales::one;
        CAPTURE(std::string(name(*one.kv_dtype)));
        CAPTURE(static_cast<int>(one.scales));
        if (compile_arch != nullptr) {
            compile_for(one, compile_arch, compiled);
            continue;
        }
        Inputs in = inputs_of(one, random);
        for (double& value : in.q.numbers)
            value = rounded(one.dtype, value);
        for (Table* numbers : {&in.s, &in.t})
            for (double& value : *numbers)
                value =
                    one.mod->is_integer && numbers == &in.t ? value : rounded(DType::f32, value);
        narrow(one, random, in.k, in.k_stored, in.k_scales);
        narrow(one, random, in.v, in.v_stored, in.v_scales);
        check_outputs(one, run(one, in), reference(one, in));
    }
}

DeviceMemory copied(Device device, const auto& numbers) {
    const std::size_t bytes = std::as_bytes(std::span(numbers)).size();
    DeviceMemory memory = memory_of(device, bytes);
    REQUIRE(memory.upload(numbers.data(), bytes).has_value());
    return memory;
}

// Every number that there is, as values of one key whose weight is 1: by products of few rows, of
// packed tiles, and element by element.
void check_codes(Device device, DType q_dtype, DType dtype, std::int64_t queries,
                 std::int64_t stride) {
    constexpr std::int64_t kBatch = 2, kHeads = 2, kCodes = 256;
    const auto kernel = compile("score", {.dtype = q_dtype,
                                          .kv_dtype = dtype,
                                          .head_dim = 8,
                                          .head_dim_v = kCodes,
                                          .device = device,
                                          .backward = false,
                                          .cache = {.disk = false}});
    REQUIRE_OK(kernel);
    std::vector<float> zeros(static_cast<std::size_t>(kBatch * kHeads * queries * 8));
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(kBatch * kHeads * kCodes * stride), 1);
    for (std::int64_t i = 0; i < kBatch * kHeads * kCodes; ++i)
        codes[static_cast<std::size_t>(i * stride)] = static_cast<std::uint8_t>(i % kCodes);
    std::vector<float> numbers(static_cast<std::size_t>(kBatch * kHeads * queries * kCodes));
    constexpr std::array<float, 4> kScales = {1, 0.5, 3, -0.25};
    const DeviceMemory q = copied(device, zeros), k = copied(device, zeros),
                       v = copied(device, codes), o = copied(device, numbers),
                       scales = copied(device, kScales);
    TensorView values =
        TensorView::contiguous(v.data(), dtype, {kBatch, kHeads, 1, kCodes * stride});
    values.shape[3] = kCodes;
    values.strides[3] = stride;
    const auto plan =
        kernel->plan({.batch = kBatch, .heads = kHeads, .kv_heads = kHeads, .q_len = queries});
    REQUIRE_OK(plan);
    const Called call(device, *plan);
    REQUIRE_OK(kernel->forward(
        *plan,
        {.q = TensorView::contiguous(q.data(), q_dtype, {kBatch, kHeads, queries, 8}),
         .k = TensorView::contiguous(k.data(), dtype, {kBatch, kHeads, 1, 8}),
         .v = values,
         .o = TensorView::contiguous(o.data(), DType::f32, {kBatch, kHeads, queries, kCodes}),
         .v_scale = TensorView::contiguous(scales.data(), DType::f32, {kBatch, kHeads})},
        {}, call.workspace));
    REQUIRE_OK(o.download(numbers.data(), 4 * numbers.size()));
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < kBatch * kHeads * queries * kCodes; ++i) {
        const auto code = static_cast<unsigned>(i % kCodes);
        const double value = dtype == DType::i8 ? static_cast<std::int8_t>(code)
                                                : test::from_eight_bits(dtype, code);
        const double expected = value * kScales[static_cast<std::size_t>(i / kCodes / queries)];
        const double got = numbers[static_cast<std::size_t>(i)];
        wrong += got != expected && !(std::isnan(got) && std::isnan(expected));
    }
    CHECK_MESSAGE(wrong == 0, name(dtype) << " by " << queries << " queries, stride " << stride);
}

} // namespace

TEST_CASE(
    "keys and values of eight bits are what float64 gives for the numbers that they stand for") {
    check_narrow_keys(Device::cpu(), 7001, 90, false);
    check_narrow_keys(Device::cpu(), 7101, 12, true);
}

TEST_CASE("keys and values of eight bits have every number") {
    for (const DType dtype : {DType::e4m3, DType::e5m2, DType::i8})
        for (const std::int64_t queries : {1, 40})
            for (const std::int64_t stride : {1, 2})
                check_codes(Device::cpu(), DType::f32, dtype, queries, stride);
}

TEST_CASE("random requests on a GPU with keys of eight bits are what float64 gives") {
    const char* arch = std::getenv("FLEXC_TEST_COMPILE");
    if (arch == nullptr && !is_on_gpu(default_device())) return;
    check_narrow_keys(Device::cuda(0), 7001, 90, false, arch);
    check_narrow_keys(Device::cuda(0), 7101, 30, true, arch);
}
TEST_CASE("random requests on a GPU: keys and values of eight bits have every number") {
    if (!is_on_gpu(default_device())) return;
    for (const DType q_dtype : {DType::f16, DType::bf16})
        for (const DType dtype : {DType::e4m3, DType::e5m2, DType::i8})
            for (const std::int64_t stride : {1, 2})
                check_codes(Device::cuda(0), q_dtype, dtype, 40, stride);
}

TEST_CASE("keys and values of eight bits: what is refused") {
    CompileOptions options{.dtype = DType::f32,
                           .kv_dtype = DType::e4m3,
                           .head_dim = 8,
                           .device = Device::cpu(),
                           .cache = {.disk = false}};
    const auto says = [](const auto& result, ErrorCode code, const char* text) {
        REQUIRE(!result.has_value());
        CHECK(result.error().code == code);
        CHECK_MESSAGE(result.error().message.find(text) != std::string::npos,
                      result.error().message);
    };
    const auto kernel = compile("score", options);
    REQUIRE_OK(kernel);
    const auto plan = kernel->plan({.batch = 3, .heads = 4, .kv_heads = 2});
    REQUIRE_OK(plan);
    std::vector<float> q(96), o(96), scales(6, 1);
    std::vector<std::uint8_t> k(48);
    const auto call_with = [&](DType of_keys, const TensorView& k_scale,
                               const TensorView& v_scale = {}) {
        const Called call(Device::cpu(), *plan);
        return kernel->forward(*plan,
                               {.q = TensorView::contiguous(q.data(), DType::f32, {3, 4, 1, 8}),
                                .k = TensorView::contiguous(k.data(), of_keys, {3, 2, 1, 8}),
                                .v = TensorView::contiguous(k.data(), of_keys, {3, 2, 1, 8}),
                                .o = TensorView::contiguous(o.data(), DType::f32, {3, 4, 1, 8}),
                                .k_scale = k_scale,
                                .v_scale = v_scale},
                               {}, call.workspace);
    };
    const auto scale = [&](std::initializer_list<std::int64_t> shape) {
        return TensorView::contiguous(scales.data(), DType::f32, shape);
    };
    for (const auto& shape : std::initializer_list<std::initializer_list<std::int64_t>>{
             {}, {1}, {2}, {3, 2}, {1, 2}, {3, 1}, {1, 1}})
        CHECK(call_with(DType::e4m3, scale(shape)).has_value());
    says(call_with(DType::e5m2, {}), ErrorCode::invalid_option, "k: expected type e4m3, got e5m2");
    says(call_with(DType::e4m3, scale({3})), ErrorCode::invalid_option,
         "k_scale: expected shape [], [2] or [3, 2], each of them or 1, got [3]");
    says(call_with(DType::e4m3, {}, scale({2, 3})), ErrorCode::invalid_option, "v_scale: expected");
    says(call_with(DType::e4m3, {}, scale({1, 3, 2})), ErrorCode::invalid_option, "v_scale");
    says(call_with(DType::e4m3, TensorView::contiguous(scales.data(), DType::f16, {2})),
         ErrorCode::invalid_option, "k_scale: expected type f32, got f16");
    says(kernel->backward(*plan, {}, {}, {}, {}), ErrorCode::unsupported,
         "keys and values in e4m3 are forward only");
    says(compile_offline("score", options, "sm_90a"), ErrorCode::unsupported, "CPU");
    CompileOptions demanding = options;
    demanding.dtype = DType::bf16;
    demanding.forward_kernel = ForwardKernel::specialized;
    says(compile_offline("score", demanding, "sm_90a"), ErrorCode::unsupported, "eight bits");
    options.kv_dtype = DType::f16;
    says(compile("score", options), ErrorCode::invalid_option, "use f32, e4m3, e5m2 or i8");
    options.kv_dtype = DType::f32; // as if it were not given
    const auto usual = compile("score", options);
    REQUIRE_OK(usual);
    const auto usual_plan = usual->plan({});
    REQUIRE_OK(usual_plan);
    const auto rows = TensorView::contiguous(q.data(), DType::f32, {1, 1, 1, 8});
    const Called usual_call(Device::cpu(), *usual_plan);
    says(usual->forward(*usual_plan,
                        {.q = rows,
                         .k = rows,
                         .v = rows,
                         .o = TensorView::contiguous(o.data(), DType::f32, {1, 1, 1, 8}),
                         .k_scale = scale({})},
                        {}, usual_call.workspace),
         ErrorCode::invalid_option,
         "k_scale: the kernel was compiled for k and v of the type of q");
    says(compile("buffer t: e4m3[H]\nscore_mod = score + t[h]", options), ErrorCode::syntax,
         "unknown type 'e4m3'");
    options.buffers = {{.name = "t", .type = DType::e5m2, .dims = {"H"}}};
    says(compile("score + t[h]", options), ErrorCode::syntax, "buffers are not of type e5m2");
}

namespace {

Rows heads_of(const Rows& all, std::int64_t first, std::int64_t count) {
    Rows part = filled(all.rows, count, all.columns, 0);
    for (std::int64_t row = 0; row < all.rows; ++row)
        for (std::int64_t head = 0; head < count; ++head)
            for (std::int64_t column = 0; column < all.columns; ++column)
                part.at(row, head, column) = all.at(row, first + head, column);
    return part;
}

// A head of keys with its queries, or some of them alone.
struct Slice {
    std::int64_t head, heads, kv_head, kv_heads;
};
void check_slice(const Case& whole, const Inputs& in, const Outputs& of_all, const Slice& slice) {
    Case part = whole;
    part.global_heads = whole.heads;
    part.global_kv_heads = whole.kv_heads;
    part.head_offset = slice.head;
    part.heads = slice.heads;
    part.kv_heads = slice.kv_heads;
    Inputs own = in; // with the buffers of the whole
    for (Rows* rows : {&own.q, &own.d_out, &own.d_lse})
        *rows = heads_of(*rows, slice.head, slice.heads);
    for (Rows* rows : {&own.k, &own.v})
        *rows = heads_of(*rows, slice.kv_head, slice.kv_heads);
    const Outputs got = run(part, own);
    const double tolerance = tolerance_of(whole.dtype);
    check_rows(part, "o", got.o.numbers, heads_of(of_all.o, slice.head, slice.heads).numbers,
               tolerance);
    check_rows(part, "lse", got.lse.numbers, heads_of(of_all.lse, slice.head, slice.heads).numbers,
               2e-5);
    if (whole.backward)
        check_rows(part, "dq", got.dq.numbers, heads_of(of_all.dq, slice.head, slice.heads).numbers,
                   2 * tolerance);
}

} // namespace

TEST_CASE("some heads of requests are the whole's slice") {
    int cases = 0;
    for (std::uint64_t seed = 5001; cases < 40; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        Case one = random_case(random, 4000, 4, cases % 4 == 0);
        const std::int64_t group = one.heads / one.kv_heads;
        const bool splits_group = cases % 2 == 0;
        if (splits_group ? group < 2 : one.kv_heads < 2) continue;
        ++cases;
        Inputs in = inputs_of(one, random);
        const Outputs whole = run(one, in);
        const std::int64_t kv_head = one.kv_heads - 1;
        check_slice(one, in, whole,
                    splits_group ? Slice{kv_head * group + 1, group - 1, kv_head, 1}
                                 : Slice{group, kv_head * group, 1, kv_head});
    }
}

namespace {

// The same tensors, of which nobody but this request uses anything.
Case without_others(const Case& all, std::size_t request) {
    Case alone = all;
    for (std::size_t b = 0; b < all.q_lens.size(); ++b)
        if (b != request) alone.q_lens[b] = alone.kv_lens[b] = 0;
    if (alone.keys == Layout::paged) alone.kv_rows = alone.kv_lens;
    return alone;
}
// A batch of this request.
Case by_itself(const Case& all, std::size_t request) {
    Case alone = all;
    const auto keep = [&](std::vector<std::int32_t>& numbers, std::size_t count) {
        numbers = {numbers.begin() + static_cast<std::ptrdiff_t>(request),
                   numbers.begin() + static_cast<std::ptrdiff_t>(request + count)};
    };
    for (std::vector<std::int32_t>* numbers :
         {&alone.q_lens, &alone.kv_lens, &alone.q_rows, &alone.kv_rows, &alone.starts})
        keep(*numbers, 1);
    for (std::vector<std::int32_t>* numbers : {&alone.cu_q, &alone.cu_k})
        keep(*numbers, 2);
    const auto first = static_cast<std::ptrdiff_t>(request) * all.max_pages;
    if (all.keys == Layout::paged)
        alone.table = {all.table.begin() + first, all.table.begin() + first + all.max_pages};
    return alone;
}

bool has_same_rows(const Case& all, std::size_t request, const Outputs& x, const Outputs& y) {
    for (std::int64_t q = 0; q < all.q_lens[request]; ++q)
        for (std::int64_t head = 0; head < all.heads; ++head) {
            const std::int64_t row = all.q_memory_row(request, q);
            if (x.lse.at(row, head) != y.lse.at(row, head)) return false;
            for (std::int64_t column = 0; column < all.dv; ++column)
                if (x.o.at(row, head, column) != y.o.at(row, head, column)) return false;
        }
    return true;
}

void check_invariance(Device device, bool is_decode, std::uint64_t first, int wanted) {
    int cases = 0;
    for (std::uint64_t seed = first; cases < wanted; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        Case one = random_case(random, 8000, 6, is_decode);
        if (one.batch() < 2) continue;
        ++cases;
        one.device = device;
        one.backward = false;
        one.by_table = one.batch_invariant = true;
        const Inputs in = inputs_of(one, random);
        const Outputs all = run(one, in);
        const std::string text = one.text();
        const bool is_named =
            text.find("[b]") != std::string::npos || text.find("_row") != std::string::npos;
        const bool is_dense = one.queries == Layout::dense || one.keys == Layout::dense;
        for (std::size_t b = 0; b < one.q_lens.size(); ++b) {
            CAPTURE(b);
            CHECK(has_same_rows(one, b, all, run(without_others(one, b), in)));
            if (!is_named && !is_dense)
                CHECK(has_same_rows(one, b, all, run(by_itself(one, b), in)));
        }
    }
}

} // namespace

TEST_CASE("batch_invariant: a request has the same bits alone and in company") {
    check_invariance(Device::cpu(), false, 6001, 25);
    check_invariance(Device::cpu(), true, 6101, 12);
}
TEST_CASE("batch_invariant: a request has the same bits alone and in company, on a GPU") {
    if (!is_on_gpu(default_device())) return;
    check_invariance(Device::cuda(0), false, 6001, 25);
    check_invariance(Device::cuda(0), true, 6101, 12);
}

TEST_CASE("batch_invariant: few dense queries have the same bits in any batch") {
    constexpr std::int64_t kBatch = 5, kHeads = 4, kKvHeads = 2, kQueries = 3, kKeys = 3000,
                           kDim = 64;
    Random random(7);
    const auto numbers = [&](std::int64_t count) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& value : values)
            value = static_cast<float>(random.real());
        return values;
    };
    std::vector<float> q = numbers(kBatch * kHeads * kQueries * kDim);
    std::vector<float> k = numbers(kBatch * kKvHeads * kKeys * kDim),
                       v = numbers(kBatch * kKvHeads * kKeys * kDim);
    const auto kernel = compile("score * 2", {.dtype = DType::f32,
                                              .head_dim = kDim,
                                              .device = Device::cpu(),
                                              .backward = false,
                                              .batch_invariant = true,
                                              .cache = {.disk = false}});
    REQUIRE_OK(kernel);
    // Of entries from `first` on.
    const auto o_of = [&](std::int64_t first, std::int64_t count) {
        std::vector<float> o(static_cast<std::size_t>(count * kHeads * kQueries * kDim));
        const auto view = [&](float* data, std::int64_t heads, std::int64_t length) {
            return TensorView::contiguous(data + first * heads * length * kDim, DType::f32,
                                          {count, heads, length, kDim});
        };
        const auto plan = kernel->plan({.batch = count,
                                        .heads = kHeads,
                                        .kv_heads = kKvHeads,
                                        .q_len = kQueries,
                                        .kv_len = kKeys});
        REQUIRE_OK(plan);
        const Called call(Device::cpu(), *plan);
        REQUIRE_OK(kernel->forward(
            *plan,
            {.q = view(q.data(), kHeads, kQueries),
             .k = view(k.data(), kKvHeads, kKeys),
             .v = view(v.data(), kKvHeads, kKeys),
             .o = TensorView::contiguous(o.data(), DType::f32, {count, kHeads, kQueries, kDim})},
            {}, call.workspace));
        return o;
    };
    const std::vector<float> all = o_of(0, kBatch);
    const std::ptrdiff_t each = kHeads * kQueries * kDim;
    for (std::int64_t b = 0; b < kBatch; ++b)
        CHECK(std::ranges::equal(o_of(b, 1),
                                 std::span(all).subspan(static_cast<std::size_t>(b * each),
                                                        static_cast<std::size_t>(each))));
}

TEST_CASE("many long requests are what float64 gives") {
    for (std::uint64_t seed = 1001; seed <= 1003; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        check_case(random_case(random, 200000, 40), random);
    }
}

namespace {

// Two requests of 2 and 1 queries, and of 3 and 5 keys in pages of 2 of a cache of 6.
struct Fixture {
    std::vector<std::int32_t> cu = {0, 2, 3}, cu_k = {0, 3, 8}, used = {3, 5};
    std::vector<std::int32_t> table = {5, 0, 9, 1, 2, 3}, indptr = {0, 2, 5};
    std::vector<std::int32_t> indices = {5, 0, 1, 2, 3}, last = {1, 1};
    Sizes sizes{.batch = 2, .heads = 2, .kv_heads = 1, .q_len = 2, .kv_len = 5};

    static Kernel kernel(Layout keys, std::string text = "score") {
        auto made = compile(text, {.dtype = DType::f32,
                                   .head_dim = 8,
                                   .query_layout = Layout::ragged,
                                   .key_layout = keys,
                                   .device = Device::cpu(),
                                   .cache = {.disk = false}});
        REQUIRE_MESSAGE(made.has_value(), made.error().message);
        return *made;
    }
    Lengths ragged() const { return {.cu_seqlens_q = cu, .cu_seqlens_k = cu_k}; }
    Lengths paged() const {
        return {
            .cu_seqlens_q = cu, .seqused_k = used, .page_table = table, .page_size = 2, .pages = 6};
    }
    Lengths by_indptr() const {
        return {.cu_seqlens_q = cu,
                .page_indptr = indptr,
                .page_indices = indices,
                .last_page_len = last,
                .page_size = 2,
                .pages = 6};
    }
};

void check_refused(const Kernel& kernel, const Sizes& sizes, const Lengths& lengths,
                   const std::string& text) {
    const auto plan = kernel.plan(sizes, {}, {}, {.lengths = lengths});
    REQUIRE(!plan.has_value());
    CHECK(plan.error().code == ErrorCode::invalid_option);
    CHECK_MESSAGE(plan.error().message.find(text) != std::string::npos, plan.error().message);
}

} // namespace

TEST_CASE("lengths and pages that cannot be right are refused by name") {
    Fixture f;
    const Kernel ragged = Fixture::kernel(Layout::ragged), paged = Fixture::kernel(Layout::paged);
    REQUIRE_OK(ragged.plan(f.sizes, {}, {}, {.lengths = f.ragged()}));
    REQUIRE_OK(paged.plan(f.sizes, {}, {}, {.lengths = f.paged()}));
    REQUIRE_OK(paged.plan(f.sizes, {}, {}, {.lengths = f.by_indptr()}));
    check_refused(ragged, f.sizes, {}, "cu_seqlens_q: missing; expected 3 numbers");
    f.cu = {0, 2, 1};
    check_refused(ragged, f.sizes, f.ragged(), "cu_seqlens_q[2] is 1, which is below");
    f.cu = {0, 3, 3};
    check_refused(ragged, f.sizes, f.ragged(),
                  "request 0 has 3 queries; the plan's q_len allows 2");
    f.cu = {0, 2, 3};
    f.cu_k = {0, 3, 9};
    check_refused(ragged, f.sizes, f.ragged(), "request 1 has 6 keys; the plan's kv_len allows 5");
    f.cu_k = {-1, 3, 5};
    check_refused(ragged, f.sizes, f.ragged(), "cu_seqlens_k[0] is -1");
    f.cu_k = {0, 3, 8};
    Lengths more = f.ragged();
    f.used = {4, 5};
    more.seqused_k = f.used;
    check_refused(ragged, f.sizes, more, "seqused_k[0] is 4; the request has 3 rows of keys");
    f.used = {3, 5};
    more = f.ragged();
    more.page_table = f.table;
    check_refused(ragged, f.sizes, more, "page_table: the kernel was compiled for keys without");

    f.table = {5, 6, 9, 1, 2, 3};
    check_refused(paged, f.sizes, f.paged(), "page 1 of request 0 is 6; the cache has 6 pages");
    f.table = {5, 0, -1, 1, 2, -3};
    check_refused(paged, f.sizes, f.paged(), "page 2 of request 1 is -3");
    f.table = {5, 0, 9, 1, 2, 3};
    f.used = {3, 7};
    check_refused(paged, f.sizes, f.paged(), "seqused_k[1] is 7; the request's pages have 6 slots");
    f.used = {3, 6};
    check_refused(paged, f.sizes, f.paged(), "request 1 has 6 keys; the plan's kv_len allows 5");
    f.last = {3, 1};
    check_refused(paged, f.sizes, f.by_indptr(), "last_page_len[0] is 3");
    f.last = {1, 1};
    f.indptr = {0, 6, 5};
    check_refused(paged, f.sizes, f.by_indptr(), "page_indptr[2] is 5, which is below");
    more = f.by_indptr();
    f.indptr = {0, 2, 7};
    more.page_size = 0;
    check_refused(paged, f.sizes, more, "page_size is 0");
    check_refused(paged, f.sizes, f.by_indptr(), "page_indptr ends at 7");
    auto offsets = ragged.plan(f.sizes, {}, {}, {.q_offset = 1, .lengths = f.ragged()});
    REQUIRE(!offsets.has_value());
}

TEST_CASE("a plan that is stale is found out, and update() takes other lengths") {
    Fixture f;
    const Kernel kernel = Fixture::kernel(Layout::ragged, "mask_mod = q_idx >= kv_idx");
    auto plan = kernel.plan(f.sizes, {}, {}, {.lengths = f.ragged()});
    REQUIRE_OK(plan);
    std::vector<float> q(3 * 2 * 8, 1), k(8 * 8, 1), v(8 * 8, 1), o(3 * 2 * 8, 7);
    const ForwardTensors tensors{.q = TensorView::contiguous(q.data(), DType::f32, {3, 2, 8}),
                                 .k = TensorView::contiguous(k.data(), DType::f32, {8, 1, 8}),
                                 .v = TensorView::contiguous(v.data(), DType::f32, {8, 1, 8}),
                                 .o = TensorView::contiguous(o.data(), DType::f32, {3, 2, 8})};
    std::vector<std::int32_t> now = f.cu_k;
    const LengthTensors known{.cu_seqlens_k = TensorView::contiguous(now.data(), DType::i32, {3})};
    ForwardTensors asking = tensors;
    asking.lengths = &known;
    const Called call(Device::cpu(), *plan);
    REQUIRE_OK(kernel.forward(*plan, asking, {}, call.workspace));
    CHECK(o[0] == doctest::Approx(1));
    now = {0, 4, 8};
    const auto stale = kernel.forward(*plan, asking, {}, call.workspace);
    REQUIRE(!stale.has_value());
    CHECK(stale.error().message.find("cu_seqlens_k: the plan was made for other numbers") !=
          std::string::npos);
    f.cu_k = now;
    REQUIRE_OK(kernel.update(*plan, f.ragged()));
    REQUIRE_OK(kernel.forward(*plan, asking, {}, call.workspace));
    // More rows than tensors have are never read.
    f.cu_k = {0, 4, 9};
    REQUIRE_OK(kernel.update(*plan, f.ragged()));
    const auto beyond = kernel.forward(*plan, tensors, {}, call.workspace);
    REQUIRE(!beyond.has_value());
    CHECK(beyond.error().message.find("k: expected shape [9, 1, 8] or more rows") !=
          std::string::npos);
    f.cu_k = {0, 4, 10};
    CHECK(!kernel.update(*plan, f.ragged()).has_value());
}

TEST_CASE("what a mask hides is that of the call's lengths and buffers, not of a call before") {
    Fixture f;
    const Kernel kernel =
        Fixture::kernel(Layout::ragged, "buffer t: i32[N]\nmask_mod = t[q_row] == t[kv_row]");
    std::vector<float> q(3 * 2 * 8, 1), k(8 * 8, 1), v(8 * 8, 1), o(3 * 2 * 8, 7);
    const ForwardTensors tensors{.q = TensorView::contiguous(q.data(), DType::f32, {3, 2, 8}),
                                 .k = TensorView::contiguous(k.data(), DType::f32, {8, 1, 8}),
                                 .v = TensorView::contiguous(v.data(), DType::f32, {8, 1, 8}),
                                 .o = TensorView::contiguous(o.data(), DType::f32, {3, 2, 8})};
    std::vector<std::int32_t> t = {0, 0, 5, 1, 1, 1, 1, 1};
    const NamedTensor buffer{"t", TensorView::contiguous(t.data(), DType::i32, {8})};
    const auto plan = kernel.plan(f.sizes, {&buffer, 1}, {}, {.lengths = f.ragged()});
    REQUIRE_OK(plan);
    const Called call(Device::cpu(), *plan);
    // Of the first number of each query's first head: 1 where it sees some key.
    const auto seen = [&] {
        REQUIRE_OK(kernel.forward(*plan, tensors, {&buffer, 1}, call.workspace));
        return std::vector<float>{o[0], o[16], o[32]};
    };
    CHECK(seen() == std::vector<float>{1, 1, 0}); // of queries 0 and 1, and keys 0 to 2; 3 to 7
    t[2] = 1;
    CHECK(seen() == std::vector<float>{1, 1, 1});
    f.cu_k = {0, 1, 2};
    REQUIRE_OK(kernel.update(*plan, f.ragged()));
    CHECK(seen() == std::vector<float>{1, 1, 0});
}

TEST_CASE("lengths in the device's memory come with update()") {
    Fixture f;
    const Kernel kernel = Fixture::kernel(Layout::paged, "mask_mod = q_idx >= kv_idx");
    Lengths given = f.paged();
    given.on_device = true;
    check_refused(kernel, f.sizes, given, "cu_seqlens_q: with Lengths::on_device the arrays come");
    check_refused(kernel, f.sizes, {.page_size = 2000, .pages = 6, .on_device = true},
                  "page_size is 2000");
    std::vector<float> q(3 * 2 * 8, 1), k(6 * 2 * 8, 1), v(6 * 2 * 8, 3), o(3 * 2 * 8, 7);
    const ForwardTensors tensors{.q = TensorView::contiguous(q.data(), DType::f32, {3, 2, 8}),
                                 .k = TensorView::contiguous(k.data(), DType::f32, {6, 2, 1, 8}),
                                 .v = TensorView::contiguous(v.data(), DType::f32, {6, 2, 1, 8}),
                                 .o = TensorView::contiguous(o.data(), DType::f32, {3, 2, 8})};
    auto plan = kernel.plan(
        f.sizes, {}, {},
        {.lengths = {.page_size = 2, .pages = 6, .on_device = true}, .forward = &tensors});
    REQUIRE_OK(plan);
    const Called call(Device::cpu(), *plan);
    REQUIRE_OK(kernel.forward(*plan, tensors, {}, call.workspace));
    CHECK(std::ranges::count(o, 7.0F) == 3 * 2 * 8); // until then no request has queries
    DeviceLengths lengths(Device::cpu(), f.paged());
    REQUIRE_OK(kernel.update(*plan, lengths.tensors));
    REQUIRE_OK(kernel.forward(*plan, tensors, {}, call.workspace));
    CHECK(std::ranges::count(o, 3.0F) == 3 * 2 * 8);

    // Memory that a CPU can read is checked as lengths of the host are.
    f.table = {5, 6, 9, 1, 2, 3};
    const DeviceLengths outside(Device::cpu(), f.paged());
    const auto refused = kernel.update(*plan, outside.tensors);
    REQUIRE(!refused.has_value());
    CHECK(refused.error().message == "page 1 of request 0 is 6; the cache has 6 pages");

    lengths.tensors.page_table = {};
    auto missing = kernel.update(*plan, lengths.tensors);
    REQUIRE(!missing.has_value());
    lengths.tensors.page_table = TensorView::contiguous(v.data(), DType::f32, {2, 3});
    missing = kernel.update(*plan, lengths.tensors);
    REQUIRE(!missing.has_value());
    CHECK(missing.error().message.find("page_table: expected a contiguous tensor of i32") !=
          std::string::npos);
    const auto again = kernel.update(*plan, Lengths{.on_device = true});
    REQUIRE(!again.has_value());
    CHECK(again.error().message.find("as LengthTensors") != std::string::npos);

    // Without tensors, those of calls have all rows that there may be.
    plan =
        kernel.plan(f.sizes, {}, {}, {.lengths = {.page_size = 2, .pages = 6, .on_device = true}});
    REQUIRE_OK(plan);
    const auto few = kernel.forward(*plan, tensors, {}, call.workspace);
    REQUIRE(!few.has_value());
    CHECK_MESSAGE(few.error().message.find("q: expected shape [4, 2, 8] or more rows") !=
                      std::string::npos,
                  few.error().message);
}

TEST_CASE("random requests on a GPU: lengths that are wrong in its memory are told") {
    if (!is_on_gpu(default_device())) return;
    const Device device = Device::cuda(0);
    Fixture f;
    const auto kernel = compile("score", {.dtype = DType::f32,
                                          .head_dim = 8,
                                          .query_layout = Layout::ragged,
                                          .key_layout = Layout::paged,
                                          .device = device,
                                          .backward = false,
                                          .report_out_of_range = true});
    REQUIRE_OK(kernel);
    const DeviceMemory q = copied(device, std::vector<float>(3 * 2 * 8, 1)),
                       k = copied(device, std::vector<float>(6 * 2 * 8, 1)),
                       v = copied(device, std::vector<float>(6 * 2 * 8, 3)),
                       o = copied(device, std::vector<float>(3 * 2 * 8, 7));
    const ForwardTensors tensors{.q = TensorView::contiguous(q.data(), DType::f32, {3, 2, 8}),
                                 .k = TensorView::contiguous(k.data(), DType::f32, {6, 2, 1, 8}),
                                 .v = TensorView::contiguous(v.data(), DType::f32, {6, 2, 1, 8}),
                                 .o = TensorView::contiguous(o.data(), DType::f32, {3, 2, 8})};
    const auto plan = kernel->plan(
        f.sizes, {}, {},
        {.lengths = {.page_size = 2, .pages = 6, .on_device = true}, .forward = &tensors});
    REQUIRE_OK(plan);
    const Called call(device, *plan);
    // Whatever the arrays hold, values are those of the cache.
    const auto told = [&] {
        const DeviceLengths lengths(device, f.paged());
        REQUIRE_OK(kernel->update(*plan, lengths.tensors));
        REQUIRE_OK(kernel->forward(*plan, tensors, {}, call.workspace));
        const auto outside = kernel->out_of_range();
        REQUIRE_OK(outside);
        std::vector<float> got(3 * 2 * 8);
        REQUIRE_OK(o.download(got.data(), 4 * got.size()));
        for (const float value : got) {
            CAPTURE(value);
            CHECK((value == 0 || value == doctest::Approx(3).epsilon(1e-6)));
        }
        return *outside;
    };
    CHECK(!told());
    f.table = {5, 6, 9, 1, 2, 3}; // a page that the cache does not have
    CHECK(told());
    f.table = {5, 0, 9, 1, 2, 3};
    f.used = {3, 6}; // more keys than the plan allows
    CHECK(told());
    f.used = {3, 5};
    f.cu = {0, 2, 1}; // descending
    CHECK(told());
    f.cu = {0, 2, 3};
    CHECK(!told());
}

TEST_CASE("random requests on a GPU: a call has the lengths that are given to it") {
    if (!is_on_gpu(default_device())) return;
    const Device device = Device::cuda(0);
    Fixture f;
    const auto kernel = compile("score", {.dtype = DType::f32,
                                          .head_dim = 8,
                                          .query_layout = Layout::ragged,
                                          .key_layout = Layout::ragged,
                                          .device = device,
                                          .backward = false});
    REQUIRE_OK(kernel);
    // Each key has its number as its value, so that o is the mean of those that a query sees.
    std::vector<float> values(8 * 8);
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(i / 8);
    const DeviceMemory q = copied(device, std::vector<float>(3 * 2 * 8, 1)),
                       k = copied(device, std::vector<float>(8 * 8, 1)), v = copied(device, values),
                       o = copied(device, std::vector<float>(3 * 2 * 8, 7));
    ForwardTensors tensors{.q = TensorView::contiguous(q.data(), DType::f32, {3, 2, 8}),
                           .k = TensorView::contiguous(k.data(), DType::f32, {8, 1, 8}),
                           .v = TensorView::contiguous(v.data(), DType::f32, {8, 1, 8}),
                           .o = TensorView::contiguous(o.data(), DType::f32, {3, 2, 8})};
    const auto plan = kernel->plan(f.sizes, {}, {}, {.lengths = f.ragged(), .forward = &tensors});
    REQUIRE_OK(plan);
    const Called call(device, *plan);
    const auto check_means = [&](const LengthTensors* lengths, const std::vector<double>& means) {
        tensors.lengths = lengths;
        REQUIRE_OK(kernel->forward(*plan, tensors, {}, call.workspace));
        std::vector<float> got(3 * 2 * 8);
        REQUIRE_OK(o.download(got.data(), 4 * got.size()));
        for (std::size_t i = 0; i < got.size(); ++i)
            CHECK(static_cast<double>(got[i]) == doctest::Approx(means[i / 16]).epsilon(1e-5));
    };
    check_means(nullptr, {1, 1, 5}); // of keys 0 to 2, and 3 to 7
    // The plan is stale: nobody has updated it.
    f.cu = {0, 1, 3};
    f.cu_k = {0, 5, 6};
    const DeviceLengths now(device, f.ragged());
    check_means(&now.tensors, {2, 5, 5});
    check_means(nullptr, {2, 5, 5}); // as after an update
    f.cu_k = {0, 2, 5};
    const DeviceLengths later(device, f.ragged());
    check_means(&later.tensors, {0.5, 3, 3});
    // All arrays of the layouts are needed.
    LengthTensors some;
    some.cu_seqlens_k = later.tensors.cu_seqlens_k;
    tensors.lengths = &some;
    const auto missing = kernel->forward(*plan, tensors, {}, call.workspace);
    REQUIRE(!missing.has_value());
    CHECK_MESSAGE(missing.error().message.find("cu_seqlens_q: missing") != std::string::npos,
                  missing.error().message);
}

TEST_CASE("heads that are no part of the whole are refused") {
    const auto message_of = [](bool part, std::int64_t heads, std::int64_t kv_heads,
                               const PlanOptions& options) {
        auto kernel =
            compile("buffer t: f32[H]\nscore_mod = score + t[h]", {.dtype = DType::f32,
                                                                   .head_dim = 8,
                                                                   .device = Device::cpu(),
                                                                   .backward = false,
                                                                   .part_of_heads = part,
                                                                   .cache = {.disk = false}});
        REQUIRE_OK(kernel);
        std::vector<float> t(16);
        const NamedTensor buffer{"t", TensorView::contiguous(t.data(), DType::f32, {16})};
        const auto plan =
            kernel->plan({.heads = heads, .kv_heads = kv_heads, .q_len = 3, .kv_len = 3},
                         {&buffer, 1}, {}, options);
        return plan ? std::string() : plan.error().message;
    };
    const auto says = [&](const std::string& message, const char* text) {
        CHECK_MESSAGE(message.find(text) != std::string::npos, message);
    };
    CHECK(message_of(true, 4, 2, {.head_offset = 4, .global_heads = 16}).empty());
    CHECK(message_of(true, 4, 2, {.head_offset = 12}).empty());
    CHECK(message_of(true, 2, 1, {.head_offset = 6, .global_heads = 16, .global_kv_heads = 4})
              .empty());
    says(message_of(false, 4, 2, {.head_offset = 4}), "set part_of_heads");
    says(message_of(true, 4, 2, {.head_offset = 14, .global_heads = 16}), "heads 14 to 18 of 16");
    says(message_of(true, 4, 2, {.head_offset = -1, .global_heads = 16}), "heads -1 to 3 of 16");
    says(message_of(true, 3, 1, {.global_heads = 16}), "give global_kv_heads");
    says(message_of(true, 4, 2, {.global_heads = 16, .global_kv_heads = 3}),
         "16 query heads cannot share 3");
    says(message_of(true, 4, 2, {.head_offset = 1, .global_heads = 16}), "whole groups of 2 heads");
    says(message_of(true, 4, 1, {.head_offset = 2, .global_heads = 16, .global_kv_heads = 4}),
         "heads of one group");
    // Buffers are those of the whole.
    says(message_of(true, 4, 2, {.head_offset = 4, .global_heads = 8}), "'t': expected shape");
    says(message_of(true, 4, 2, {.params = {}, .global_heads = 1 << 30}), "must be below");
    const ParamValue hidden{"H.first", 1};
    says(message_of(true, 16, 2, {.params = {&hidden, 1}}), "'H.first' is not a parameter");
}

TEST_CASE("paged keys are forward only, and queries have no pages") {
    Fixture f;
    const Kernel kernel = Fixture::kernel(Layout::paged);
    auto plan = kernel.plan(f.sizes, {}, {}, {.lengths = f.paged()});
    REQUIRE_OK(plan);
    const auto backward = kernel.backward(*plan, {}, {}, {}, {});
    REQUIRE(!backward.has_value());
    CHECK(backward.error().code == ErrorCode::unsupported);
    CHECK(backward.error().message.find("forward only") != std::string::npos);
    CompileOptions options;
    options.query_layout = Layout::paged;
    CHECK(compile("score", options).error().code == ErrorCode::invalid_option);
}

#endif
