#include "flexc/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "flexc/command.h"
#include "support/text.h"

namespace flexc::cli {

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// [B, H, S, columns], or [B, H, S] where columns is 0: this rank's rows of a whole tensor.
struct RankTensor {
    std::string name;
    DType dtype = DType::f32;
    std::int64_t batch = 0, heads = 0, columns = 0;
    const Shards* shards = nullptr;
    std::vector<std::byte> bytes;

    std::size_t row_bytes() const {
        return static_cast<std::size_t>(std::max<std::int64_t>(columns, 1)) * size_of(dtype);
    }
    std::size_t bytes_of(int rank) const {
        return static_cast<std::size_t>(batch * heads * shards->rows(rank)) * row_bytes();
    }
    std::vector<std::int64_t> shape(std::int64_t rows) const {
        std::vector<std::int64_t> shape = {batch, heads, rows};
        if (columns != 0) {
            shape.push_back(columns);
        }
        return shape;
    }
    TensorView view(int rank) {
        return TensorView::contiguous(bytes.empty() ? nullptr : bytes.data(), dtype,
                                      shape(shards->rows(rank)));
    }

    // Calls visit(byte of the whole, byte of the rank's, bytes) for runs of rows without gaps.
    template <typename Visit> void each_run(int rank, Visit visit) const {
        std::size_t own = 0;
        for (std::int64_t head = 0; head < batch * heads; ++head) {
            for (const auto& range : shards->ranges(rank)) {
                const auto begin =
                    static_cast<std::size_t>(head * shards->length() + range.begin) * row_bytes();
                const auto size = static_cast<std::size_t>(range.count()) * row_bytes();
                visit(begin, own, size);
                own += size;
            }
        }
    }
};

class RankCall {
  public:
    RankCall(const RankedProblem& problem, std::shared_ptr<Communicator> communicator,
             std::string_view exchange)
        : problem_(problem), communicator_(std::move(communicator)), rank_(communicator_->rank()) {
        const auto start = Clock::now();
        kernel_ = value_of(compile_distributed(problem.text, problem.options));
        compile_ms_ = milliseconds_since(start);
        const int ranks = communicator_->ranks();
        const auto& sizes = problem.shape.sizes;
        const bool is_zigzag = exchange == "zigzag" || exchange == "auto";
        queries_ = value_of(is_zigzag ? Shards::zigzag(sizes.q_len, ranks)
                                      : Shards::contiguous(sizes.q_len, ranks));
        keys_ = value_of(is_zigzag ? Shards::zigzag(sizes.kv_len, ranks)
                                   : Shards::contiguous(sizes.kv_len, ranks));
        options_.exchange = exchange == "auto"      ? Exchange::automatic
                            : exchange == "gather"  ? Exchange::all_gather
                            : exchange == "ulysses" ? Exchange::ulysses
                                                    : Exchange::ring;
        options_.scale = problem.scale;
        for (const auto& [name, value] : problem.params) {
            params_.push_back({name, value});
        }
        options_.params = params_;
    }

    RankedRun run(const TensorFile& file) {
        RankedRun result;
        load(file);
        const auto& sizes = problem_.shape.sizes;
        const auto plan = value_of(kernel_.plan({.batch = sizes.batch,
                                                 .heads = sizes.heads,
                                                 .kv_heads = sizes.kv_heads,
                                                 .queries = queries_,
                                                 .keys = keys_},
                                                communicator_, buffer_views_, options_));
        result.compile_ms = compile_ms_;
        result.from_cache = kernel_.kernel().from_cache();
        result.exchange = plan.exchange();
        result.traffic = plan.traffic();
        auto start = Clock::now();
        require(kernel_.forward(plan, {view("q"), view("k"), view("v"), view("o"), view("lse")},
                                buffer_views_));
        result.forward_ms = milliseconds_since(start);
        if (problem_.backward) {
            start = Clock::now();
            require(kernel_.backward(plan,
                                     {.q = view("q"),
                                      .k = view("k"),
                                      .v = view("v"),
                                      .o = view("o"),
                                      .lse = view("lse"),
                                      .d_out = view("do"),
                                      .d_lse = view("dlse"),
                                      .dq = view("dq"),
                                      .dk = view("dk"),
                                      .dv = view("dv")},
                                     buffer_views_, gradient_views_));
            result.backward_ms = milliseconds_since(start);
        }
        for (const char* name : {"o", "lse", "dq", "dk", "dv"}) {
            if (tensors_.contains(name)) {
                collect(tensors_.at(name), result.outputs);
            }
        }
        if (rank_ == 0) {
            std::ranges::move(gradients_, std::back_inserter(result.outputs));
        }
        return result;
    }

  private:
    RankTensor& add(const std::string& name, DType dtype, bool is_query, std::int64_t columns) {
        const auto& sizes = problem_.shape.sizes;
        auto& tensor = tensors_[name];
        tensor = {.name = name,
                  .dtype = dtype,
                  .batch = sizes.batch,
                  .heads = is_query ? sizes.heads : sizes.kv_heads,
                  .columns = columns,
                  .shards = is_query ? &queries_ : &keys_,
                  .bytes = {}};
        tensor.bytes.resize(tensor.bytes_of(rank_));
        return tensor;
    }
    TensorView view(const std::string& name) {
        const auto found = tensors_.find(name);
        return found == tensors_.end() ? TensorView{} : found->second.view(rank_);
    }

    void load(const TensorFile& file) {
        const auto& shape = problem_.shape;
        const auto read = [&](const char* name, DType dtype, bool is_query, std::int64_t columns) {
            const auto* entry = file.find(name);
            if (entry == nullptr) {
                return;
            }
            auto& tensor = add(name, dtype, is_query, columns);
            tensor.each_run(rank_, [&](std::size_t whole, std::size_t own, std::size_t size) {
                require(file.read(*entry, whole, std::span(tensor.bytes).subspan(own, size)));
            });
        };
        read("q", shape.dtype, true, shape.head_dim);
        read("k", shape.dtype, false, shape.head_dim);
        read("v", shape.dtype, false, shape.head_dim_v);
        add("o", problem_.output_type, true, shape.head_dim_v);
        add("lse", DType::f32, true, 0);
        if (problem_.backward) {
            read("do", shape.dtype, true, shape.head_dim_v);
            read("dlse", DType::f32, true, 0);
            add("dq", shape.dtype, true, shape.head_dim);
            add("dk", shape.dtype, false, shape.head_dim);
            add("dv", shape.dtype, false, shape.head_dim_v);
        }
        for (const auto& buffer : problem_.signature.buffers) {
            const auto& entry = *file.find(buffer.name);
            buffers_.push_back(value_of(file.read(entry)));
            buffer_views_.push_back(
                {buffer.name,
                 TensorView::read_only(buffers_.back().data(), buffer.dtype, entry.shape)});
            if (!buffer.grad || !problem_.backward) {
                continue;
            }
            const auto dtype =
                problem_.options.gradient_type == GradientType::buffer ? buffer.dtype : DType::f32;
            OutputTensor gradient{
                .name = "d." + buffer.name, .dtype = dtype, .shape = entry.shape, .bytes = {}};
            gradient.bytes.resize(buffers_.back().size() / size_of(buffer.dtype) * size_of(dtype));
            gradients_.push_back(std::move(gradient));
            gradient_views_.push_back(
                {buffer.name,
                 TensorView::contiguous(gradients_.back().bytes.data(), dtype, entry.shape)});
        }
    }

    // Rows of all ranks become a whole tensor on rank 0.
    void collect(const RankTensor& tensor, std::vector<OutputTensor>& outputs) {
        constexpr int kChannel = 0;
        using Parts = std::map<int, std::vector<std::byte>>;
        auto parts = std::make_shared<Parts>();
        std::vector<Communicator::Message> sends, receives;
        for (int rank = 0; rank < communicator_->ranks(); ++rank) {
            if (rank == rank_) {
                (*parts)[rank] = tensor.bytes;
            } else if (rank_ == 0) {
                auto& part = (*parts)[rank];
                part.resize(tensor.bytes_of(rank));
                receives.push_back({rank, part.data(), part.size()});
            }
        }
        if (rank_ != 0) {
            auto& own = (*parts)[rank_];
            sends.push_back({0, own.data(), own.size()});
        }
        const auto ticket = value_of(communicator_->start(kChannel, sends, receives, parts));
        require(communicator_->wait(ticket));
        if (rank_ != 0) {
            return;
        }
        OutputTensor whole{.name = tensor.name,
                           .dtype = tensor.dtype,
                           .shape = tensor.shape(tensor.shards->length()),
                           .bytes = {}};
        whole.bytes.resize(
            static_cast<std::size_t>(tensor.batch * tensor.heads * tensor.shards->length()) *
            tensor.row_bytes());
        for (const auto& [rank, part] : *parts) {
            tensor.each_run(rank, [&](std::size_t to, std::size_t from, std::size_t size) {
                std::memcpy(whole.bytes.data() + to, part.data() + from, size);
            });
        }
        outputs.push_back(std::move(whole));
    }

    const RankedProblem& problem_;
    std::shared_ptr<Communicator> communicator_;
    int rank_;
    DistributedKernel kernel_;
    double compile_ms_ = 0;
    Shards queries_, keys_;
    DistributedOptions options_;
    std::vector<ParamValue> params_;
    std::map<std::string, RankTensor> tensors_;
    std::vector<std::vector<std::byte>> buffers_;
    std::vector<NamedTensor> buffer_views_, gradient_views_;
    std::vector<OutputTensor> gradients_;
};

} // namespace

void add_rank_options(CommandLine command, RankOption& option) {
    command.option("--ranks", option.ranks,
                   "one, or mpi: each process that mpirun starts is a rank, on a CPU",
                   {.among = {"one", "mpi"}});
    command.option("--exchange", option.exchange,
                   "Of ranks: auto, ring, zigzag (a ring with even work under a causal mask), "
                   "gather (all keys that a rank needs at once) or ulysses (some heads each)",
                   {.among = {"auto", "ring", "zigzag", "gather", "ulysses"}});
}

std::shared_ptr<Communicator> open_ranks(const RankOption& option) {
    if (option.ranks == "one") {
        if (option.exchange != "auto") {
            fail_usage("--exchange is between ranks: give --ranks mpi too");
        }
        return nullptr;
    }
    return value_of(mpi_communicator());
}

RankedRun run_on_ranks(const RankedProblem& problem, const TensorFile& file,
                       std::shared_ptr<Communicator> communicator, std::string_view exchange) {
    return RankCall(problem, std::move(communicator), exchange).run(file);
}

} // namespace flexc::cli
