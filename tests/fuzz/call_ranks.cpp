// Shards of ranks, and attention of one rank, by the C interface.
#include <algorithm>

#include "call_changes.h"
#include "call_status.h"
#include "call_subjects.h"
#include "flexc/flexc_distributed_c.h"

namespace flexc::fuzz {

namespace {

class RankCalls : private CallStatus {
  public:
    explicit RankCalls(Arguments& arguments)
        : CallStatus(arguments.bytes()), arguments_(arguments), bytes_(arguments.bytes()) {}
    RankCalls(const RankCalls&) = delete;
    RankCalls& operator=(const RankCalls&) = delete;
    ~RankCalls() {
        flexc_distributed_plan_free(plan_);
        flexc_distributed_kernel_free(kernel_);
        flexc_communicator_free(communicator_);
        flexc_shards_free(shards_);
    }

    void run() {
        for (int i = 0; i < 3; ++i) {
            make_shards(bytes_.chance(60));
            look_at_shards();
        }
        if (bytes_.chance(50)) attend();
    }

  private:
    static constexpr std::int64_t kHeads = 2, kRows = 9;

    // --- shards -------------------------------------------------------------------------------

    void make_shards(bool is_usual) {
        flexc_shards_free(shards_);
        shards_ = nullptr;
        std::int64_t length = 1 + static_cast<std::int64_t>(bytes_.below(200)),
                     rows = 1 + static_cast<std::int64_t>(bytes_.below(9));
        auto ranks = 1 + static_cast<std::int32_t>(bytes_.below(9));
        const std::size_t way = bytes_.below(4);
        if (!is_usual) {
            // Not of as many stripes as memory has no room for.
            if (bytes_.chance(50) && way != 2) length = bytes_.pick(kExtremes);
            if (bytes_.chance(50)) ranks = static_cast<std::int32_t>(bytes_.pick(kExtremes));
            if (bytes_.chance(50)) rows = bytes_.pick(kExtremes);
        }
        flexc_shards** made = is_usual || bytes_.chance(95) ? &shards_ : nullptr;
        flexc_status status = FLEXC_OK;
        switch (way) {
        case 0: status = flexc_shards_contiguous(length, ranks, made, out()); break;
        case 1: status = flexc_shards_zigzag(length, ranks, made, out()); break;
        case 2: status = flexc_shards_striped(length, ranks, rows, made, out()); break;
        default: status = of_ranges(length, ranks, made, is_usual); break;
        }
        const bool ok = is_usual ? (accepted(status, "usual shards"), true) : done(status);
        require(ok == (shards_ != nullptr), "shards without success, or the reverse");
        require(!ok || flexc_shards_ranks(shards_) == ranks, "shards of other ranks");
        require(!ok || flexc_shards_length(shards_) == length, "shards of another length");
    }

    // Ranges of any lengths in any order, which hold every row once where they are usual.
    flexc_status of_ranges(std::int64_t length, std::int32_t ranks, flexc_shards** made,
                           bool is_usual) {
        std::vector<flexc_rank_range> ranges;
        std::int64_t begin = 0;
        for (int i = 0; i < 20 && begin < length; ++i) {
            auto range = sized<flexc_rank_range>();
            range.rank = static_cast<std::int32_t>(bytes_.below(255)) % std::max(1, ranks);
            range.begin = begin;
            const bool is_last = i == 19 || bytes_.chance(20);
            const auto rows = static_cast<std::int64_t>(bytes_.below(30));
            range.end = is_last ? length : begin + std::min(rows, length - begin);
            begin = range.end;
            ranges.push_back(range);
        }
        for (std::size_t i = ranges.size(); i > 1; --i)
            std::swap(ranges[i - 1], ranges[bytes_.below(i)]);
        if (!is_usual && !ranges.empty()) {
            flexc_rank_range& wrong = ranges[bytes_.below(ranges.size())];
            switch (bytes_.below(4)) {
            case 0: wrong.begin = bytes_.pick(kExtremes); break;
            case 1: wrong.end = bytes_.pick(kExtremes); break;
            case 2: wrong.rank = static_cast<std::int32_t>(bytes_.pick(kExtremes)); break;
            default: ranges.pop_back(); break;
            }
        }
        const bool has_ranges = is_usual || bytes_.chance(95);
        return flexc_shards_of(length, ranks, has_ranges ? ranges.data() : nullptr, ranges.size(),
                               made, out());
    }

    // The ranges of all ranks hold every row once.
    void look_at_shards() {
        constexpr std::int32_t kMostRanks = 64;
        const std::int32_t ranks = flexc_shards_ranks(shards_);
        std::int64_t rows = 0;
        std::vector<std::pair<std::int64_t, std::int64_t>> all;
        for (std::int32_t rank = 0; rank < ranks && ranks <= kMostRanks; ++rank) {
            std::int64_t of_rank = 0;
            for (std::size_t i = 0; i < flexc_shards_range_count(shards_, rank); ++i) {
                auto range = sized<flexc_rank_range>();
                accepted(flexc_shards_range(shards_, rank, i, &range, out()), "a range");
                require(range.rank == rank && range.begin < range.end, "a range is none");
                of_rank += range.end - range.begin;
                all.push_back({range.begin, range.end});
            }
            require(of_rank == flexc_shards_rows(shards_, rank), "a rank has other rows");
            rows += of_rank;
        }
        std::ranges::sort(all);
        for (std::size_t i = 1; i < all.size(); ++i)
            require(all[i].first == all[i - 1].second, "a row is held twice, or by nobody");
        require(all.empty() || rows == flexc_shards_length(shards_), "not all rows are held");
        const auto other = static_cast<std::int32_t>(bytes_.pick(kExtremes));
        if (other < 0 || other >= ranks)
            require(flexc_shards_rows(shards_, other) == 0, "a rank that is none has rows");
        auto range = sized<flexc_rank_range>();
        done(flexc_shards_range(shards_, other, static_cast<std::size_t>(bytes_.pick(kExtremes)),
                                arguments_.filled(range), out()));
    }

    // --- one rank -----------------------------------------------------------------------------

    void attend() {
        const flexc_compile_options options = usual_options();
        auto rows = sized<flexc_sharded_buffer>();
        rows.buffer = "rows";
        rows.dim = bytes_.chance(90) ? "Q_LEN" : bytes_.chance(50) ? "KV_LEN" : nullptr;
        const bool is_right = rows.dim != nullptr && *rows.dim == 'Q';
        const auto compiled = flexc_distributed_compile(
            "buffer rows: f32[Q_LEN] grad\nscore_mod = score + rows[q_idx]\n"
            "mask_mod = q_idx >= kv_idx",
            &options, &rows, bytes_.chance(70) || !is_right ? 1 : 0, &kernel_, out());
        if (!is_right) return refused(compiled, "a buffer of rows that it has not");
        accepted(compiled, "a program of ranks");
        if (bytes_.chance(20)) {
            std::array<flexc_communicator*, 3> all{};
            const auto ranks = static_cast<std::int32_t>(bytes_.below(all.size() + 2)) - 1;
            const auto opened = flexc_in_process_communicators(ranks, nullptr, all.data(), out());
            if (done(opened))
                require(flexc_communicator_rank(all[0]) == 0 &&
                            flexc_communicator_ranks(all[0]) == ranks,
                        "a communicator of other ranks");
            for (flexc_communicator* one : all)
                flexc_communicator_free(one);
        }
        auto patience = sized<flexc_communicator_options>();
        patience.timeout_seconds = real(arguments_.random(), true);
        if (!done(flexc_in_process_communicators(1, &patience, &communicator_, out())))
            accepted(flexc_in_process_communicators(1, nullptr, &communicator_, out()), "one rank");
        plan();
        if (plan_ == nullptr) return;
        look_at_plan();
        launch();
    }

    void plan() {
        flexc_shards_free(shards_);
        shards_ = nullptr;
        accepted(flexc_shards_zigzag(kRows, 1, &shards_, out()), "shards of one rank");
        if (bytes_.chance(30)) balance();
        auto sizes = sized<flexc_distributed_sizes>();
        sizes.batch = 1;
        sizes.heads = kHeads;
        sizes.kv_heads = 1;
        sizes.queries = sizes.keys = shards_;
        auto options = sized<flexc_distributed_options>();
        options.exchange = static_cast<std::int32_t>(bytes_.below(4));
        options.reduction = static_cast<std::int32_t>(bytes_.below(3));
        const bool is_usual = bytes_.chance(80);
        if (!is_usual) change(sizes, options);
        const auto status = flexc_distributed_plan_create(
            kernel_, is_usual ? &sizes : arguments_.given(sizes), communicator_, nullptr, 0,
            nullptr, is_usual ? &options : arguments_.given(options), &plan_, out());
        if (is_usual) accepted(status, "a plan of one rank");
        require(done(status) == (plan_ != nullptr), "a plan without success, or the reverse");
        if (is_usual) return;
        // What was accepted is of other sizes than the tensors below.
        flexc_distributed_plan_free(plan_);
        plan_ = nullptr;
    }

    void balance() {
        auto sizes = sized<flexc_sizes>();
        sizes.batch = 1;
        sizes.heads = kHeads;
        sizes.kv_heads = 1;
        sizes.q_len = sizes.kv_len = kRows;
        std::int32_t ranks = 1 + static_cast<std::int32_t>(bytes_.below(12));
        const bool is_usual = bytes_.chance(60);
        if (!is_usual) {
            if (bytes_.chance(50)) ranks = static_cast<std::int32_t>(bytes_.pick(kExtremes));
            if (bytes_.chance(50)) sizes.q_len = sizes.kv_len = small(bytes_);
            if (bytes_.chance(50)) sizes.heads = bytes_.pick(kExtremes);
        }
        flexc_shards* balanced = nullptr;
        const auto status = flexc_shards_balanced(kernel_, &sizes, ranks, nullptr, 0, nullptr,
                                                  nullptr, &balanced, out());
        if (is_usual) accepted(status, "balanced shards");
        require(done(status) == (balanced != nullptr), "shards without success, or the reverse");
        std::swap(balanced, shards_);
        look_at_shards();
        std::swap(balanced, shards_);
        flexc_shards_free(balanced);
    }

    void change(flexc_distributed_sizes& sizes, flexc_distributed_options& options) {
        switch (bytes_.below(8)) {
        case 0: sizes.batch = bytes_.pick(kExtremes); return;
        case 1: sizes.heads = bytes_.pick(kExtremes); return;
        case 2: sizes.kv_heads = bytes_.pick(kExtremes); return;
        case 3: (bytes_.chance(50) ? sizes.queries : sizes.keys) = nullptr; return;
        case 4: options.exchange = small(bytes_); return;
        case 5: options.reduction = small(bytes_); return;
        case 6:
            options.has_scale = 1;
            options.scale = real(arguments_.random(), true);
            return;
        default: options.ranks_per_node = static_cast<std::int32_t>(bytes_.pick(kExtremes)); return;
        }
    }

    void look_at_plan() {
        auto traffic = sized<flexc_traffic>();
        if (done(flexc_distributed_plan_traffic(plan_, arguments_.filled(traffic), out())) &&
            traffic.struct_size == sizeof traffic)
            require(traffic.forward_sent == 0 && traffic.backward_received == 0,
                    "one rank sends to nobody");
        flexc_text* text = nullptr;
        accepted(flexc_distributed_plan_explain(plan_, &text, out()), "an explanation");
        require(flexc_text_size(text) > 0, "an explanation says nothing");
        flexc_text_free(text);
    }

    void launch() {
        const std::vector<std::int64_t> q_shape = {1, kHeads, kRows, kHeadDim},
                                        kv_shape = {1, 1, kRows, kHeadDim},
                                        row_shape = {1, kHeads, kRows};
        auto call = sized<flexc_backward_tensors>();
        call.q = arguments_.input(DType::f32, q_shape);
        call.k = arguments_.input(DType::f32, kv_shape);
        call.v = arguments_.input(DType::f32, kv_shape);
        call.o = arguments_.output(q_shape);
        call.lse = arguments_.output(row_shape);
        call.d_out = arguments_.input(DType::f32, q_shape);
        call.dq = arguments_.output(q_shape);
        call.dk = arguments_.output(kv_shape);
        call.dv = arguments_.output(kv_shape);
        const Named buffers = {named("rows", arguments_.input(DType::f32, {kRows}))},
                    gradients = {named("rows", arguments_.output({kRows}))};
        auto forward = sized<flexc_forward_tensors>();
        forward.q = call.q;
        forward.k = call.k;
        forward.v = call.v;
        forward.o = call.o;
        forward.lse = call.lse;
        const auto launched = [&] {
            return flexc_distributed_forward(kernel_, plan_, &forward, buffers.data(),
                                             buffers.size(), nullptr, out());
        };
        accepted(launched(), "a forward of one rank");
        accepted(flexc_distributed_backward(kernel_, plan_, &call, buffers.data(), buffers.size(),
                                            gradients.data(), gradients.size(), nullptr, out()),
                 "a backward of one rank");
        const std::array<const flexc_tensor**, 4> tensors = {&forward.q, &forward.k, &forward.v,
                                                             &forward.o};
        const flexc_tensor*& broken = *bytes_.pick(tensors);
        broken = bytes_.chance(30) ? nullptr : arguments_.of_other_form(*broken);
        refused(launched(), "a wrong forward of one rank");
    }

    Arguments& arguments_;
    Bytes& bytes_;
    flexc_shards* shards_ = nullptr;
    flexc_communicator* communicator_ = nullptr;
    flexc_distributed_kernel* kernel_ = nullptr;
    flexc_distributed_plan* plan_ = nullptr;
};

} // namespace

void call_with_ranks(Arguments& arguments) { RankCalls(arguments).run(); }

} // namespace flexc::fuzz
