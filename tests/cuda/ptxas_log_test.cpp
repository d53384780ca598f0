#include <doctest/doctest.h>

#include "cuda/ptxas_log.h"

using namespace flexc::cuda;

TEST_CASE("registers, spills, stack and shared memory of each kernel of a log") {
    const auto kernels = parse_ptxas_log(
        "ptxas info    : 77 bytes gmem, 16 bytes cmem[4]\n"
        "ptxas info    : Compiling entry function 'first' for 'sm_90a'\n"
        "ptxas info    : Function properties for first\n"
        "    32 bytes stack frame, 24 bytes spill stores, 28 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 1 barriers, 32 bytes cumulative stack size, 1024 "
        "bytes smem\n"
        "ptxas info    : Function properties for helper\n"
        "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Compiling entry function 'second' for 'sm_90a'\n"
        "ptxas info    : Function properties for second\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 8 registers, used 0 barriers\n");
    REQUIRE(kernels.size() == 2);
    CHECK(kernels[0].name == "first");
    CHECK(kernels[0].stack_bytes == 32);
    CHECK(kernels[0].spill_store_bytes == 24);
    CHECK(kernels[0].spill_load_bytes == 28);
    CHECK(kernels[0].registers == 168);
    CHECK(kernels[0].shared_bytes == 1024);
    CHECK(kernels[1].name == "second");
    CHECK(kernels[1].registers == 8);
    CHECK(kernels[1].shared_bytes == 0);
}

TEST_CASE("a helper's spills are its own, not those of the module's main kernel") {
    const std::string log =
        "ptxas info    : Compiling entry function 'flexc_backward_references' for 'sm_90a'\n"
        "ptxas info    : Function properties for flexc_backward_references\n"
        "    16 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 16 bytes smem\n"
        "ptxas info    : Compiling entry function 'flexc_backward_sm90' for 'sm_90a'\n"
        "ptxas info    : Function properties for flexc_backward_sm90\n"
        "    8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 16 barriers\n";
    const auto kernels = parse_ptxas_log(log);
    CHECK(usage_of(kernels, "flexc_backward_sm90").spill_store_bytes == 4);
    CHECK(usage_of(kernels, "flexc_backward_sm90").registers == 168);
    CHECK(usage_of(kernels, "flexc_backward_references").spill_store_bytes == 16);
    // What the log does not name may be any of its kernels.
    const KernelUsage most = usage_of(kernels, "another");
    CHECK(most.registers == 255);
    CHECK(most.spill_store_bytes == 16);
    CHECK(most.spill_load_bytes == 20);
    CHECK(most.shared_bytes == 16);
    CHECK(usage_of({}, "another").spill_store_bytes == 0);
}

TEST_CASE("products that ptxas puts in a row are told") {
    const std::string kernel = "ptxas info    : Compiling entry function 'one' for 'sm_90a'\n"
                               "ptxas info    : Used 168 registers, used 16 barriers\n";
    const auto serialised = [&](const std::string& line) {
        return parse_ptxas_log(line + kernel).at(0).serialised;
    };
    CHECK(!serialised(""));
    CHECK(serialised("ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async "
                     "instructions are serialized due to insufficient register resources\n"));
    CHECK(serialised("ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored\n"));
    CHECK(!serialised("ptxas info    : (C7519) warpgroup.arrive is injected in around line 9\n"));
}

TEST_CASE("a log without kernels, or cut short, gives what is there") {
    CHECK(parse_ptxas_log("").empty());
    CHECK(parse_ptxas_log("warning: something\n").empty());
    const auto kernels = parse_ptxas_log("ptxas info : Compiling entry function 'cut");
    REQUIRE(kernels.size() == 1);
    CHECK(kernels[0].registers == 0);
}
