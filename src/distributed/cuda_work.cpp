#include "distributed/cuda_work.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "api/template_code.h"
#include "cuda/driver.h"
#include "cuda/owned.h"
#include "distributed/device_pool.h"
#include "distributed/moves.h"
#include "distributed/rows.h"
#include "ranks/launch.h"
#include "runtime/buffers.h"
#include "support/text.h"

namespace flexc::distributed {

class DeviceCode {
  public:
    DeviceCode(int device, cuda::Module module) : device_(device), module_(std::move(module)) {}

    Result<void> load() {
        struct Entry {
            std::optional<cuda::Function>* to;
            const char* name;
        };
        for (const auto& [to, name] :
             {Entry{&move_, "flexc_move"}, Entry{&merge_, "flexc_merge"},
              Entry{&finish_, "flexc_finish"}, Entry{&add_sinks_, "flexc_add_sinks"},
              Entry{&sink_gradients_, "flexc_sink_gradients"},
              Entry{&sum_ranks_, "flexc_sum_ranks"}}) {
            auto function = module_.function(name, 0);
            if (!function) return function.error();
            *to = *function;
        }
        return {};
    }

    int device() const { return device_; }
    const cuda::Function& move() const { return *move_; }
    const cuda::Function& merge() const { return *merge_; }
    const cuda::Function& finish() const { return *finish_; }
    const cuda::Function& add_sinks() const { return *add_sinks_; }
    const cuda::Function& sink_gradients() const { return *sink_gradients_; }
    const cuda::Function& sum_ranks() const { return *sum_ranks_; }

  private:
    int device_;
    cuda::Module module_; // functions live as long as it does
    std::optional<cuda::Function> move_, merge_, finish_, add_sinks_, sink_gradients_, sum_ranks_;
};

Result<std::shared_ptr<const DeviceCode>> load_device_code(int device,
                                                           const CompileOptions& options) {
    auto cubin = api::compile_template("ranks.cu", device, options);
    if (!cubin) return cubin.error();
    auto module = cuda::Module::load(device, *cubin);
    if (!module) return module.error();
    auto code = std::make_shared<DeviceCode>(device, std::move(*module));
    if (auto done = code->load(); !done) return done.error();
    return std::shared_ptr<const DeviceCode>(std::move(code));
}

namespace {

// Tensor operations in one stream.
class CudaTensors final : public TensorWork {
  public:
    CudaTensors(std::shared_ptr<const DeviceCode> code, std::shared_ptr<DevicePool> pool)
        : code_(std::move(code)), pool_(std::move(pool)) {}

    void set_stream(void* stream) { stream_ = stream; }
    void* stream() const { return stream_; }
    Result<cuda::ContextScope> enter() const {
        return cuda::ContextScope::enter(code_->device(), stream_);
    }

    Result<Bytes> allocate(std::size_t bytes) override { return pool_->allocate(bytes); }
    Result<void> clear(void* data, std::size_t bytes) override {
        auto scope = enter();
        if (!scope) return scope.error();
        return cuda::fill_async(data, 0, bytes, stream_);
    }
    using TensorWork::add;
    using TensorWork::copy;
    Result<void> copy(std::span<const Moved> all) override { return move(all, move_of); }
    Result<void> add(std::span<const Moved> all) override { return move(all, addition_of); }
    Result<void> merge(const ranks::PartialSums& sums, const ranks::Part& part) override {
        return launch(code_->merge(), {32 * part.count}, sums, part);
    }
    Result<void> finish(const ranks::FinishedRows& rows) override {
        return launch(code_->finish(), {32 * rows.batch * rows.sums.heads * rows.rows}, rows);
    }
    Result<void> add_sinks(const ranks::SinkRows& rows) override {
        return launch(code_->add_sinks(), {rows.count}, rows);
    }
    Result<void> sink_gradients(const ranks::SinkGradients& sinks) override {
        return launch(code_->sink_gradients(), {32 * sinks.count}, sinks);
    }
    Result<void> sum(const ranks::RankSums& sums) override {
        return launch(code_->sum_ranks(), {sums.count}, sums);
    }

  private:
    // As few launches as can be.
    template <typename MakeMove> Result<void> move(std::span<const Moved> all, MakeMove make) {
        ranks::Moves moves;
        unsigned count = 0;
        long long most = 0;
        for (const Moved& one : all) {
            const ranks::Move move = make(one.from, one.to);
            if (move.units > 0) {
                moves.all[count++] = move;
                most = std::max(most, move.units);
            }
            if (count < ranks::Moves::kMost && &one != &all.back()) continue;
            if (auto done = launch(code_->move(), {most, count}, moves); !done) return done;
            count = 0;
            most = 0;
        }
        return {};
    }

    // A thread for each element or row, up to what fills the device, in each row of blocks.
    struct Threads {
        long long count = 0;
        unsigned rows = 1;
    };
    template <typename... Arguments>
    Result<void> launch(const cuda::Function& function, Threads threads,
                        const Arguments&... arguments) const {
        constexpr long long kMostBlocks = 4096;
        if (threads.count == 0) return {};
        auto scope = enter();
        if (!scope) return scope.error();
        const long long blocks = std::min((threads.count + ranks::kThreads - 1) / ranks::kThreads,
                                          kMostBlocks / threads.rows);
        // The driver copies them before launch() returns.
        const std::array<void*, sizeof...(arguments)> pointers = {
            const_cast<Arguments*>(&arguments)...};
        return function.launch({.x = static_cast<unsigned>(blocks), .y = threads.rows},
                               {.x = ranks::kThreads}, 0, stream_, pointers);
    }

    std::shared_ptr<const DeviceCode> code_;
    std::shared_ptr<DevicePool> pool_;
    void* stream_ = nullptr;
};

class CudaWork final : public RankWork {
  public:
    static Result<std::shared_ptr<RankWork>> make(const std::shared_ptr<const DeviceCode>& code) {
        auto work = std::make_shared<CudaWork>(code);
        if (auto made = work->make_streams(); !made) return made.error();
        return std::shared_ptr<RankWork>(std::move(work));
    }
    explicit CudaWork(const std::shared_ptr<const DeviceCode>& code)
        : device_(code->device()), pool_(std::make_shared<DevicePool>(device_)),
          tensors_(code, pool_), beside_tensors_(code, pool_) {}

    ~CudaWork() override {
        // The memory is given back to the driver, so nothing may still use it.
        if (auto scope = cuda::ContextScope::enter(device_)) (void)cuda::synchronize_context();
    }

    Result<void> begin(Stream stream) override {
        tensors_.set_stream(stream.handle);
        if (!has_last_) return {};
        auto scope = tensors_.enter();
        if (!scope) return scope.error();
        return cuda::wait_for_event(stream.handle, last_.get());
    }
    Result<void> end() override {
        if (auto done = join(); !done) return done; // after an error, too
        auto scope = tensors_.enter();
        if (!scope) return scope.error();
        has_last_ = true;
        return cuda::record_event(last_.get(), tensors_.stream());
    }
    Stream stream() const override { return {tensors_.stream()}; }
    Result<Stream> fork() override {
        if (auto done = order(tensors_.stream(), forked_, lane_.get()); !done) return done.error();
        return Stream{lane_.get()};
    }
    Result<void> join() override { return order(lane_.get(), joined_, tensors_.stream()); }

    TensorWork& tensors() override { return tensors_; }
    Result<TensorWork*> beside() override {
        for (const auto& [stream, event] :
             {std::pair{tensors_.stream(), &fork_}, std::pair{lane_.get(), &lane_fork_}})
            if (auto done = order(stream, *event, beside_.get()); !done) return done.error();
        return &beside_tensors_;
    }
    Result<TensorWork*> beside_forked() override {
        if (auto done = order(lane_.get(), lane_fork_, beside_.get()); !done) return done.error();
        return &beside_tensors_;
    }
    Result<Communicator::Ticket> start(Communicator& communicator, int channel,
                                       std::span<const Communicator::Message> sends,
                                       std::span<const Communicator::Message> receives,
                                       std::shared_ptr<void> memory) override {
        auto scope = tensors_.enter();
        if (!scope) return scope.error();
        if (auto done = cuda::record_event(packed_.get(), beside_.get()); !done)
            return done.error();
        return communicator.start_on_stream({beside_.get()}, channel, sends, receives,
                                            std::move(memory));
    }
    // A kernel that moves messages finds no multiprocessor once launches have taken them all: these
    // come when it is next in its stream.
    Result<void> let_messages_begin() override {
        auto scope = tensors_.enter();
        if (!scope) return scope.error();
        return cuda::wait_for_event(tensors_.stream(), packed_.get());
    }
    // Neither stream of launches waits for the other one's, nor for messages that were started
    // later.
    Result<void> wait(Communicator& communicator, Communicator::Ticket ticket) override {
        if (auto done = communicator.wait_on_stream(ticket, {arrivals_.get()}); !done) return done;
        return reach_launches(arrivals_.get());
    }
    Result<void> finish(Communicator& communicator) override {
        return communicator.finish_streams();
    }

    Result<TensorView> on_host(const TensorView& tensor, Bytes& memory) override {
        const std::size_t bytes = bytes_of(tensor);
        TensorView packed =
            TensorView::contiguous(tensor.data, tensor.dtype, runtime::shape_of(tensor));
        auto room = pool_->allocate(bytes);
        if (!room) return room.error();
        packed.data = room->get();
        if (auto done = tensors_.copy(tensor, packed); !done) return done.error();
        auto scope = tensors_.enter();
        if (!scope) return scope.error();
        if (auto done = cuda::synchronize_stream(tensors_.stream()); !done) return done.error();
        memory = Bytes(new std::byte[bytes]);
        if (auto done = cuda::copy_to_host(memory.get(), packed.data, bytes); !done)
            return done.error();
        packed.data = memory.get();
        return packed;
    }

    Result<TensorView> for_launches(const TensorView& tensor, Bytes& memory) override {
        const std::size_t bytes = bytes_of(tensor);
        auto room = pool_->allocate(bytes);
        if (!room) return room.error();
        auto scope = tensors_.enter();
        if (!scope) return scope.error();
        if (auto done =
                cuda::copy_to_device_async(room->get(), tensor.data, bytes, tensors_.stream());
            !done)
            return done.error();
        if (auto done = cuda::synchronize_stream(tensors_.stream()); !done) return done.error();
        memory = std::move(*room);
        TensorView copy = tensor;
        copy.data = memory.get();
        return copy;
    }

  private:
    Result<void> make_streams() {
        using cuda::Priority;
        for (auto [stream, priority] :
             {std::pair{&beside_, Priority::greatest}, std::pair{&lane_, Priority::middle},
              std::pair{&arrivals_, Priority::greatest}}) {
            auto made = cuda::make_stream(device_, priority);
            if (!made) return made.error();
            *stream = std::move(*made);
        }
        for (cuda::OwnedEvent* event :
             {&fork_, &lane_fork_, &packed_, &forked_, &joined_, &reached_, &last_}) {
            auto made = cuda::make_event(device_);
            if (!made) return made.error();
            *event = std::move(*made);
        }
        beside_tensors_.set_stream(beside_.get());
        return {};
    }
    // Later work in `later` starts after the work that `earlier` has now.
    Result<void> order(void* earlier, const cuda::OwnedEvent& event, void* later) const {
        auto scope = tensors_.enter();
        if (!scope) return scope.error();
        if (auto done = cuda::record_event(event.get(), earlier); !done) return done;
        return cuda::wait_for_event(later, event.get());
    }
    // What comes to either stream of launches now comes after what `earlier` has.
    Result<void> reach_launches(void* earlier) const {
        auto scope = tensors_.enter();
        if (!scope) return scope.error();
        if (auto done = cuda::record_event(reached_.get(), earlier); !done) return done;
        for (void* const stream : {tensors_.stream(), lane_.get()})
            if (auto done = cuda::wait_for_event(stream, reached_.get()); !done) return done;
        return {};
    }

    const int device_;
    std::shared_ptr<DevicePool> pool_;
    CudaTensors tensors_, beside_tensors_;
    cuda::OwnedStream beside_, lane_, arrivals_;
    cuda::OwnedEvent fork_, lane_fork_, packed_, forked_, joined_, reached_;
    cuda::OwnedEvent last_; // of the call before
    bool has_last_ = false;
};

} // namespace

Result<std::shared_ptr<RankWork>> make_cuda_work(const std::shared_ptr<const DeviceCode>& code) {
    return CudaWork::make(code);
}

} // namespace flexc::distributed
