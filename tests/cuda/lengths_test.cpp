// Records of requests as lengths.cu makes them, on the host, beside those that the host makes.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/length_arrays.h"
#include "draws.h"
#include "host_module.h"
#include "runtime/sequences.h"

namespace {

using namespace flexc;

using Function = void(const LengthArrays*, const SequenceRecords*);

constexpr std::string_view kText = R"(
#undef __shared__
#define __shared__ static
#include "lengths.cu"
extern "C" void run(const LengthArrays* arrays, const SequenceRecords* records) {
    run_block(kThreads, [&] {
        for (int request = 0; request < arrays->requests; ++request) {
            blockIdx.x = request;
            flexc_read_lengths(*arrays, *records);
        }
        __syncthreads();
        flexc_divide_keys(*arrays, *records);
    });
}
)";

std::string text_with(int warps) {
    return "namespace mod { constexpr int kWarps = " + std::to_string(warps) + "; }\n" +
           std::string(kText);
}

using Numbers = std::vector<std::int32_t>;

struct Drawn {
    Layout queries = Layout::ragged, keys = Layout::ragged;
    Sizes sizes;
    Numbers cu_q, cu_k, used_q, used_k, table, indptr, indices, last, starts;
    std::int64_t page_size = 0, pages = 0, q_rows = 0, kv_rows = 0;
    QueryStart start = QueryStart::automatic;
    bool batch_invariant = false;

    Lengths lengths() const {
        return {.cu_seqlens_q = cu_q,
                .cu_seqlens_k = cu_k,
                .seqused_q = used_q,
                .seqused_k = used_k,
                .page_table = table,
                .page_indptr = indptr,
                .page_indices = indices,
                .last_page_len = last,
                .page_size = page_size,
                .pages = pages,
                .query_start = start,
                .query_starts = starts};
    }
    // What tensors of a call are asked for.
    bool has_rows() const {
        return (cu_q.empty() || cu_q.back() <= q_rows) && (cu_k.empty() || cu_k.back() <= kv_rows);
    }
};

class Draw {
  public:
    explicit Draw(std::uint64_t seed) : random_(seed) {}

    int below(int end) { return test::draws_below(random_)(end); }

    Drawn one() {
        Drawn drawn;
        constexpr Layout kLayouts[] = {Layout::dense, Layout::ragged, Layout::paged};
        do {
            drawn.queries = kLayouts[below(2)];
            drawn.keys = kLayouts[below(3)];
        } while (drawn.queries == Layout::dense && drawn.keys == Layout::dense);
        const int group = 1 << below(4);
        drawn.sizes = {.batch = below(8) == 0 ? 0 : below(40),
                       .heads = 4 * group,
                       .kv_heads = 4,
                       .q_len = below(90),
                       .kv_len = below(3) == 0 ? below(20000) : below(300)};
        drawn.start = static_cast<QueryStart>(below(3));
        drawn.batch_invariant = below(3) == 0;
        axis(drawn.queries, drawn.sizes.q_len, drawn.sizes.batch, drawn.cu_q, drawn.used_q,
             drawn.q_rows);
        if (drawn.keys == Layout::paged)
            pages(drawn);
        else
            axis(drawn.keys, drawn.sizes.kv_len, drawn.sizes.batch, drawn.cu_k, drawn.used_k,
                 drawn.kv_rows);
        if (below(3) == 0)
            for (std::int64_t b = 0; b < drawn.sizes.batch; ++b)
                drawn.starts.push_back(below(1000) - 500);
        return drawn;
    }

    // One number of one array becomes another.
    void spoil(Drawn& drawn) {
        std::vector<Numbers*> arrays;
        for (Numbers* one : {&drawn.cu_q, &drawn.cu_k, &drawn.used_q, &drawn.used_k, &drawn.table,
                             &drawn.indptr, &drawn.indices, &drawn.last, &drawn.starts})
            if (!one->empty()) arrays.push_back(one);
        if (arrays.empty()) return;
        Numbers& array = *arrays[static_cast<std::size_t>(below(static_cast<int>(arrays.size())))];
        std::int32_t& number =
            array[static_cast<std::size_t>(below(static_cast<int>(array.size())))];
        const std::int32_t others[] = {-1,         INT32_MIN,  INT32_MAX, number + 1,
                                       number - 1, below(100), 1 << 30};
        number = others[below(7)];
    }

  private:
    void axis(Layout layout, std::int64_t most, std::int64_t batch, Numbers& cu, Numbers& used,
              std::int64_t& rows) {
        const bool is_used = layout == Layout::dense || below(2) == 0;
        if (layout == Layout::ragged) cu.push_back(below(5));
        for (std::int64_t b = 0; b < batch; ++b) {
            // More rows than the most that are used may be there.
            std::int64_t own = most;
            if (layout == Layout::ragged) {
                own = below(4) == 0 ? 0 : below(static_cast<int>(most) + (is_used ? 9 : 1));
                cu.push_back(cu.back() + static_cast<std::int32_t>(own));
            }
            if (is_used) used.push_back(below(static_cast<int>(std::min(own, most)) + 1));
        }
        if (layout == Layout::ragged) rows = cu.back() + below(3);
    }

    void pages(Drawn& drawn) {
        drawn.page_size = 1 + below(40);
        drawn.pages = 1 + below(300);
        const std::int64_t most = (drawn.sizes.kv_len + drawn.page_size - 1) / drawn.page_size;
        const auto page = [&] {
            return static_cast<std::int32_t>(below(static_cast<int>(drawn.pages)));
        };
        if (below(2) == 0) {
            const std::int64_t width = most + below(3);
            for (std::int64_t b = 0; b < drawn.sizes.batch; ++b) {
                drawn.used_k.push_back(below(static_cast<int>(drawn.sizes.kv_len) + 1));
                for (std::int64_t i = 0; i < width; ++i)
                    drawn.table.push_back(i * drawn.page_size < drawn.used_k.back() ? page() : -7);
            }
            return;
        }
        const bool by_last = below(2) == 0;
        drawn.indptr.push_back(0);
        for (std::int64_t b = 0; b < drawn.sizes.batch; ++b) {
            const std::int64_t count = drawn.sizes.kv_len / drawn.page_size;
            const int own = below(static_cast<int>(count) + 1);
            for (int i = 0; i < own; ++i)
                drawn.indices.push_back(page());
            drawn.indptr.push_back(drawn.indptr.back() + own);
            if (by_last)
                drawn.last.push_back(1 + below(static_cast<int>(drawn.page_size)));
            else
                drawn.used_k.push_back(below(own * static_cast<int>(drawn.page_size) + 1));
        }
    }

    std::mt19937_64 random_;
};

struct Read {
    std::vector<Sequence> sequences;
    std::vector<int> pages;
    int is_wrong = 0;
    int most_numbers = 0;
};

Read read(Function* run, const Drawn& drawn) {
    auto arrays =
        runtime::Sequences::arrays(drawn.queries, drawn.keys, drawn.sizes, drawn.lengths());
    REQUIRE_MESSAGE(arrays.has_value(), arrays.error().message);
    arrays->q_rows = drawn.q_rows;
    arrays->kv_rows = drawn.kv_rows;
    arrays->batch_invariant = drawn.batch_invariant;
    Read result;
    const auto batch = static_cast<std::size_t>(drawn.sizes.batch);
    result.most_numbers = arrays->most_numbers;
    // What is left of lengths before is no zeros.
    result.sequences.assign(batch + 1, Sequence{-1, -1, -1, -1, -1, -1, -1, -1, -1});
    result.pages.assign(batch * static_cast<std::size_t>(result.most_numbers) + 1, -1);
    const SequenceRecords records{result.sequences.data(), result.pages.data(), &result.is_wrong};
    run(&*arrays, &records);
    CHECK(result.pages.back() == -1);
    return result;
}

void check_same(const Read& got, const runtime::Sequences& expected, int page_size) {
    const SequenceArguments view = expected.view();
    REQUIRE(got.sequences.size() == expected.sequences.size() + 1);
    for (std::size_t b = 0; b < expected.sequences.size(); ++b) {
        CAPTURE(b);
        const Sequence &one = got.sequences[b], &other = expected.sequences[b];
        CHECK(one.q_row == other.q_row);
        CHECK(one.q_rows == other.q_rows);
        CHECK(one.q_len == other.q_len);
        CHECK(one.kv_row == other.kv_row);
        CHECK(one.kv_rows == other.kv_rows);
        CHECK(one.kv_len == other.kv_len);
        CHECK(one.q_start == other.q_start);
        CHECK(one.first_part == other.first_part);
        for (int key = 0; page_size > 0 && key < other.kv_len; key += page_size)
            CHECK(got.pages[static_cast<std::size_t>(one.first_number + key / page_size)] ==
                  view.keys.numbers[other.first_number + key / page_size]);
    }
}

// Whatever the arrays hold, nothing outside is named.
void check_inside(const Read& got, const Drawn& drawn) {
    int part = 0;
    for (std::size_t b = 0; b + 1 < got.sequences.size(); ++b) {
        CAPTURE(b);
        const Sequence& one = got.sequences[b];
        const std::int64_t q_rows =
            drawn.queries == Layout::ragged ? drawn.q_rows : drawn.sizes.q_len;
        const std::int64_t kv_rows = drawn.keys == Layout::ragged  ? drawn.kv_rows
                                     : drawn.keys == Layout::paged ? std::int64_t{one.kv_rows}
                                                                   : drawn.sizes.kv_len;
        CHECK((one.q_row >= 0 && one.q_rows >= 0 && one.q_row + one.q_rows <= q_rows));
        CHECK((one.kv_row >= 0 && one.kv_rows >= 0 && one.kv_row + one.kv_rows <= kv_rows));
        CHECK((one.q_len >= 0 && one.q_len <= one.q_rows && one.q_len <= drawn.sizes.q_len));
        CHECK((one.kv_len >= 0 && one.kv_len <= one.kv_rows && one.kv_len <= drawn.sizes.kv_len));
        CHECK(one.first_part >= part);
        part = one.first_part;
        for (int i = 0; drawn.page_size > 0 && i * drawn.page_size < one.kv_len; ++i) {
            REQUIRE(i < got.most_numbers);
            const int page = got.pages[static_cast<std::size_t>(one.first_number + i)];
            CHECK((page >= 0 && page < drawn.pages));
        }
    }
    const auto batch = drawn.sizes.batch, heads = drawn.sizes.kv_heads;
    CHECK(got.sequences.back().first_part >= part);
    CHECK(got.sequences.back().first_part <= (drawn.batch_invariant
                                                  ? batch * (kOwnPartBlocks / heads + 1)
                                                  : kPartBlocks / heads + batch));
}

} // namespace

TEST_CASE("a device's records of requests are the host's, and what the host refuses is told") {
    int refused = 0, accepted = 0;
    for (const int warps : {1, 4}) {
        const test::HostModule module(text_with(warps));
        auto* run = module.function<Function>("run");
        Draw draw(static_cast<std::uint64_t>(warps));
        for (int round = 0; round < (warps == 1 ? 240 : 30); ++round) {
            CAPTURE(warps);
            CAPTURE(round);
            Drawn drawn = draw.one();
            if (round % 2 == 1) draw.spoil(drawn);
            const Read got = read(run, drawn);
            auto expected =
                runtime::Sequences::read(drawn.queries, drawn.keys, drawn.sizes, drawn.lengths());
            const bool is_right = expected.has_value() && drawn.has_rows();
            if (round % 2 == 0) REQUIRE_MESSAGE(is_right, expected.error().message);
            // The device reads nothing of no requests.
            if (drawn.sizes.batch > 0) CHECK((got.is_wrong == 0) == is_right);
            check_inside(got, drawn);
            (is_right ? accepted : refused)++;
            if (!is_right) continue;
            (*expected)->divide_keys(drawn.sizes, drawn.batch_invariant);
            check_same(got, **expected, static_cast<int>(drawn.page_size));
        }
    }
    CHECK(refused > 50);
    CHECK(accepted > 150);
}
