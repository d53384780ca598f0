#include "distributed/host_work.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "distributed/moves.h"
#include "runtime/alignment.h"

namespace flexc::distributed {

namespace {

struct Free {
    void operator()(std::byte* data) const {
        ::operator delete(data, std::align_val_t{runtime::kAlignment});
    }
};

class HostTensors final : public TensorWork {
  public:
    Result<Bytes> allocate(std::size_t bytes) override {
        void* const data =
            ::operator new(std::max<std::size_t>(bytes, 1), std::align_val_t{runtime::kAlignment});
        return Bytes(static_cast<std::byte*>(data), Free());
    }
    Result<void> clear(void* data, std::size_t bytes) override {
        if (bytes > 0) std::memset(data, 0, bytes);
        return {};
    }
    using TensorWork::add;
    using TensorWork::copy;
    Result<void> copy(std::span<const Moved> all) override {
        for (const Moved& one : all)
            run(move_of(one.from, one.to));
        return {};
    }
    Result<void> add(std::span<const Moved> all) override {
        for (const Moved& one : all)
            run(addition_of(one.from, one.to));
        return {};
    }

    Result<void> merge(const ranks::PartialSums& sums, const ranks::Part& part) override {
        for (long long row = 0; row < part.count; ++row) {
            const long long place = part.place(row, sums);
            double& weight = sums.weights[place];
            if (part.o == nullptr) {
                weight = sums.largest[place] == ranks::no_lse() ? 0 : 1;
                continue;
            }
            const float lse = part.lse[row];
            if (lse == ranks::no_lse()) continue;
            float* const to = sums.outputs + place * sums.columns;
            const float* const from = part.o + row * sums.columns;
            const ranks::Merged merged = ranks::merge(sums.largest[place], weight, lse);
            if (weight == 0)
                std::copy_n(from, sums.columns, to);
            else
                for (int column = 0; column < sums.columns; ++column)
                    to[column] = to[column] * merged.of_sum + merged.of_part * from[column];
            sums.largest[place] = merged.largest;
            weight = merged.weight;
        }
        return {};
    }

    Result<void> finish(const ranks::FinishedRows& finished) override {
        for (long long b = 0; b < finished.batch; ++b)
            for (long long h = 0; h < finished.sums.heads; ++h)
                for (long long row = 0; row < finished.rows; ++row)
                    finish_row(finished, b, h, row);
        return {};
    }

    Result<void> add_sinks(const ranks::SinkRows& rows) override {
        for (long long row = 0; row < rows.count; ++row)
            ranks::add_sink(rows.sinks[row], rows.lse[row],
                            rows.d_lse == nullptr ? nullptr : rows.d_lse + row);
        return {};
    }

    Result<void> sink_gradients(const ranks::SinkGradients& sinks) override {
        for (long long row = 0; row < sinks.count; ++row) {
            double product = 0;
            for (int column = 0; column < sinks.columns; ++column) {
                const long long at = row * sinks.columns + column;
                product += double{sinks.o[at]} * double{sinks.d_out[at]};
            }
            sinks.gradients[row] = ranks::sink_gradient(sinks.sinks[row], sinks.lse[row], product);
        }
        return {};
    }

    Result<void> sum(const ranks::RankSums& sums) override {
        for (long long i = 0; i < sums.count; ++i) {
            double sum = 0;
            for (int rank = 0; rank < sums.ranks; ++rank)
                sum += double{sums.parts[rank * sums.count + i]};
            sums.to[i] = static_cast<float>(sum * double{sums.factor});
        }
        return {};
    }

  private:
    static void finish_row(const ranks::FinishedRows& finished, long long b, long long h,
                           long long row) {
        const ranks::PartialSums& sums = finished.sums;
        const long long head = b * sums.heads + h, i = head * finished.rows + row;
        const long long place = head * sums.rows + finished.first_row + row;
        const ranks::Merged merged =
            ranks::merge_last(sums.largest[place], sums.weights[place],
                              finished.part_lse == nullptr ? nullptr : finished.part_lse + i);
        const bool is_empty = merged.weight == 0;
        const double lse =
            is_empty ? double{ranks::no_lse()} : ranks::log_of(merged.largest, merged.weight);
        const float* const sink = finished.sinks == nullptr ? nullptr : finished.sinks + place;
        const double by = is_empty ? 1 : ranks::divisor(lse, merged.weight, sink);
        float* const outputs = sums.outputs + place * sums.columns;
        const float* const part =
            finished.part_o == nullptr ? outputs : finished.part_o + i * sums.columns;
        for (int column = 0; column < sums.columns; ++column) {
            const float sum =
                is_empty ? 0 : ranks::merged_output(merged, outputs + column, part + column);
            outputs[column] = static_cast<float>(double{sum} / by);
        }
        ranks::Move move{.from = reinterpret_cast<const char*>(outputs),
                         .to = finished.o + b * finished.o_strides[0] + h * finished.o_strides[1] +
                               row * finished.o_strides[2],
                         .units = sums.columns,
                         .rank = 1,
                         .kind = finished.o_type == ranks::FinishedRows::kF16 ? ranks::Move::kToF16
                                 : finished.o_type == ranks::FinishedRows::kBf16
                                     ? ranks::Move::kToBf16
                                     : ranks::Move::kCopy4};
        move.extents[0] = sums.columns;
        move.from_strides[0] = sizeof(float);
        move.to_strides[0] = finished.o_strides[3];
        run(move);
        if (finished.lse == nullptr) return;
        const auto rounded = static_cast<float>(lse);
        std::memcpy(finished.lse + b * finished.lse_strides[0] + h * finished.lse_strides[1] +
                        row * finished.lse_strides[2],
                    &rounded, sizeof rounded);
    }
};

class HostWork final : public RankWork {
  public:
    Result<void> begin(Stream /*stream*/) override { return {}; }
    Result<void> end() override { return {}; }
    Stream stream() const override { return {}; }
    Result<Stream> fork() override { return Stream{}; }
    Result<void> join() override { return {}; }

    TensorWork& tensors() override { return tensors_; }
    Result<TensorWork*> beside() override { return &tensors_; }
    Result<TensorWork*> beside_forked() override { return &tensors_; }
    Result<Communicator::Ticket> start(Communicator& communicator, int channel,
                                       std::span<const Communicator::Message> sends,
                                       std::span<const Communicator::Message> receives,
                                       std::shared_ptr<void> memory) override {
        return communicator.start(channel, sends, receives, std::move(memory));
    }
    Result<void> let_messages_begin() override { return {}; }
    Result<void> wait(Communicator& communicator, Communicator::Ticket ticket) override {
        return communicator.wait(ticket);
    }
    Result<void> finish(Communicator& /*communicator*/) override { return {}; }

    Result<TensorView> on_host(const TensorView& tensor, Bytes& /*memory*/) override {
        return tensor;
    }
    Result<TensorView> for_launches(const TensorView& tensor, Bytes& /*memory*/) override {
        return tensor;
    }

  private:
    HostTensors tensors_;
};

} // namespace

std::shared_ptr<RankWork> make_host_work() { return std::make_shared<HostWork>(); }

} // namespace flexc::distributed
