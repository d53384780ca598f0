// Sums by address in shared memory, run by threads of the host: memory gets the same sums, and each
// address once for a block where the table has room.
#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "draws.h"
#include "fresh_seed.h"
#include "host_module.h"

namespace {

using namespace flexc;

// Adds `count` times 1 + i % 3 to data[places[i]]; -1 adds nothing. Returns how many additions
// memory has seen.
using Function = int(float* data, const int* places, int count);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "common/shared_words.cuh"
static std::atomic<int> additions;
namespace sm80 {
inline void add_float(float* to, float x) {
    ++additions;
    ::add_float(to, x);
}
}
#include "sm80/address_sums.cuh"
template <int kBytes> int add_all(float* data, const int* places, int count) {
    additions = 0;
    std::memset(memory_of_block, 0xff, sizeof memory_of_block);
    run_block(64, [&] {
        const sm80::AddressSums<64, kBytes, 4096> sums(0);
        sums.clear();
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += 64)
            sums.add(places[i] < 0 ? nullptr : data + places[i], 1 + i % 3);
        __syncthreads();
        sums.flush();
    });
    return additions;
}
extern "C" int roomy(float* data, const int* places, int count) {
    return add_all<65536>(data, places, count);
}
extern "C" int cramped(float* data, const int* places, int count) {
    return add_all<200>(data, places, count);
}
)";

} // namespace

TEST_CASE("sums by address are those of one addition after another") {
    const test::HostModule module("#include <atomic>\n" + std::string(kText));
    std::mt19937 random(test::fresh_seed());
    const auto below = test::draws_below(random);
    for (const bool has_room : {true, false})
        for (const int entries : {1, 3, 40, 675, 3000}) {
            CAPTURE(has_room);
            CAPTURE(entries);
            const int stride = 1 + below(5), count = 4096;
            std::vector<float> data(static_cast<std::size_t>(entries * stride), 1.0F);
            std::vector<float> wanted = data;
            std::vector<int> places;
            for (int i = 0; i < count; ++i) {
                // Half of them at one place.
                places.push_back(below(2) * below(entries) * stride);
                if (below(7) == 0) {
                    places.back() = -1;
                    continue;
                }
                wanted[static_cast<std::size_t>(places.back())] += static_cast<float>(1 + i % 3);
            }
            auto* const run = module.function<Function>(has_room ? "roomy" : "cramped");
            const int additions = run(data.data(), places.data(), count);
            CHECK(data == wanted);
            if (has_room && entries <= 675) CHECK(additions <= entries);
        }
}
