// The C++ example of docs/serving.md, which CMake cuts out of the page, between an engine with a
// paged cache and a comparison with attention by its definition.
#include <flexc/flexc.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string_view>
#include <vector>

namespace {

constexpr int kRequests = 4, kHeads = 4, kKvHeads = 2, kHeadDim = 16, kMostQueries = 48,
              kMostKeys = 96, kPageSize = 16, kPages = 20, kMostPages = kMostKeys / kPageSize;

// How many tokens each request computes in each step; -1: it has ended, and its pages are free.
constexpr int kSteps[][kRequests] = {
    {5, 17, 40, 0}, {1, 1, 1, 23}, {1, -1, 1, 1}, {1, 31, 1, 1}, {4, 1, 1, -1}};

int report(std::string_view message) {
    std::cerr << message << '\n';
    return 1;
}

void* allocate(std::size_t bytes) {
    static std::vector<std::unique_ptr<unsigned char[]>> memory;
    unsigned char* data = memory.emplace_back(new unsigned char[bytes + 256]).get();
    return data + (256 - reinterpret_cast<std::uintptr_t>(data) % 256) % 256;
}

class Engine {
  public:
    Engine()
        : cu_seqlens_q_(kRequests + 1), seqused_k_(kRequests), page_table_(kRequests * kMostPages),
          q_(kRequests * kMostQueries * kHeads * kHeadDim), o_(q_.size(), NAN),
          k_(kPages * kPageSize * kKvHeads * kHeadDim, NAN), v_(k_.size(), NAN) {
        for (int page = 0; page < kPages; ++page)
            free_.push_back(page * 7 % kPages);
    }

    bool begin_step() {
        if (++step_ == std::size(kSteps)) return false;
        for (int b = 0; b < kRequests; ++b) {
            Request& request = requests_[b];
            request.queries = std::max(0, kSteps[step_][b]);
            if (kSteps[step_][b] < 0) {
                free_.insert(free_.end(), request.pages.begin(), request.pages.end());
                request = {};
            }
            const int keys = seqused_k_[b] = request.keys() + request.queries;
            while (static_cast<int>(request.pages.size()) * kPageSize < keys) {
                request.pages.push_back(free_.back());
                free_.pop_back();
            }
            std::copy(request.pages.begin(), request.pages.end(), &page_table_[b * kMostPages]);
            cu_seqlens_q_[b + 1] = cu_seqlens_q_[b] + request.queries;
        }
        for (float& x : q_)
            x = next();
        return true;
    }

    flexc::Lengths lengths() const {
        return {.cu_seqlens_q = cu_seqlens_q_,
                .seqused_k = seqused_k_,
                .page_table = page_table_,
                .page_size = kPageSize,
                .pages = kPages};
    }

    // As a model's projections would.
    void write_keys_and_values() {
        for (Request& request : requests_)
            for (int token = 0; token < request.queries; ++token) {
                const int key = request.keys();
                const int slot = request.pages[key / kPageSize] * kPageSize + key % kPageSize;
                for (int i = 0; i < kRow; ++i) {
                    request.k.push_back(k_[slot * kRow + i] = next());
                    request.v.push_back(v_[slot * kRow + i] = next());
                }
            }
    }

    flexc::ForwardTensors tensors() {
        const auto view = [](std::vector<float>& data, std::initializer_list<std::int64_t> shape) {
            return flexc::TensorView::contiguous(data.data(), flexc::DType::f32, shape);
        };
        return {.q = view(q_, {kRequests * kMostQueries, kHeads, kHeadDim}),
                .k = view(k_, {kPages, kPageSize, kKvHeads, kHeadDim}),
                .v = view(v_, {kPages, kPageSize, kKvHeads, kHeadDim}),
                .o = view(o_, {kRequests * kMostQueries, kHeads, kHeadDim}),
                .lse = {},
                .lengths = nullptr};
    }
    std::vector<flexc::NamedTensor> buffers() {
        return {{"slopes", flexc::TensorView::contiguous(slopes_, flexc::DType::f32, {kHeads})}};
    }

    bool is_right() const {
        for (int b = 0; b < kRequests; ++b)
            for (int query = 0; query < requests_[b].queries; ++query)
                for (int h = 0; h < kHeads; ++h)
                    if (!is_right(requests_[b], cu_seqlens_q_[b] + query,
                                  requests_[b].keys() - requests_[b].queries + query, h))
                        return false;
        return true;
    }

  private:
    static constexpr int kRow = kKvHeads * kHeadDim;
    struct Request {
        std::vector<int> pages;
        std::vector<float> k, v; // of all its tokens
        int queries = 0;
        int keys() const { return static_cast<int>(k.size()) / kRow; }
    };

    float next() { return std::sin(static_cast<float>(++drawn_ % 10007)); }

    bool is_right(const Request& request, int row, int q_idx, int h) const {
        const float* q = &q_[(row * kHeads + h) * kHeadDim];
        std::vector<double> sum(kHeadDim);
        double weights = 0;
        for (int key = 0; key <= q_idx; ++key) {
            const int at = key * kRow + h / (kHeads / kKvHeads) * kHeadDim;
            double score = 0;
            for (int d = 0; d < kHeadDim; ++d)
                score += static_cast<double>(q[d]) * request.k[at + d];
            score = score / std::sqrt(kHeadDim) + slopes_[h] * (key - q_idx);
            weights += std::exp(score);
            for (int d = 0; d < kHeadDim; ++d)
                sum[d] += std::exp(score) * request.v[at + d];
        }
        for (int d = 0; d < kHeadDim; ++d)
            if (!(std::abs(o_[(row * kHeads + h) * kHeadDim + d] - sum[d] / weights) < 1e-5))
                return false;
        return true;
    }

    std::size_t step_ = -1;
    unsigned drawn_ = 0;
    float slopes_[kHeads] = {0.5f, 0.25f, 0.125f, 0.0625f};
    Request requests_[kRequests];
    std::vector<int> free_;
    std::vector<std::int32_t> cu_seqlens_q_, seqused_k_, page_table_;
    std::vector<float> q_, o_, k_, v_;
};

} // namespace

int main() {
    Engine engine;
#include "serving_example.h"
    std::cout << "serving ends well\n";
    return 0;
}
