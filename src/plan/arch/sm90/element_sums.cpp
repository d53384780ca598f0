#include "plan/arch/sm90/element_sums.h"

#include <utility>

namespace flexc::plan::sm90 {
namespace {

// Returns the registers that the loop over terms takes for so many elements.
int registers_of(const ElementSums& sums, int elements) {
    constexpr int kOfRead = 3, kRows = 2; // an address and a value
    return elements * (sums.count + sums.carried + kOfRead * sums.reads_of_elements) +
           elements / kRows * kOfRead * sums.reads_of_keys +
           kRows * kOfRead * sums.reads_of_queries;
}

} // namespace

int sum_elements_of_rows(const ElementSums& sums, int registers) {
    constexpr int kFewest = 4;
    if (sums.count == 0) return 0;
    int elements = kMostSumElements;
    while (elements > kFewest && registers_of(sums, elements) > registers)
        elements /= 2;
    return elements;
}

int sum_elements_of_keys(ElementSums sums, int registers) {
    std::swap(sums.reads_of_queries, sums.reads_of_keys);
    return sum_elements_of_rows(sums, registers);
}

} // namespace flexc::plan::sm90
