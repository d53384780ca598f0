// What a user reads for each NAME.flex of this folder is NAME.expected. FLEXC_UPDATE_GOLDENS=1 in
// the environment writes these anew: review the difference.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "front/compile_text.h"

namespace {

using namespace flexc;

constexpr const char* kGoldens = FLEXC_SOURCE_DIR "/tests/error";

std::string read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::filesystem::path> programs() {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(kGoldens))
        if (entry.path().extension() == ".flex") paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    return paths;
}

} // namespace

TEST_CASE("every diagnostic reads as its golden says") {
    const bool update = std::getenv("FLEXC_UPDATE_GOLDENS") != nullptr;
    REQUIRE(programs().size() > 50);
    for (std::filesystem::path path : programs()) {
        CAPTURE(path.filename().string());
        const front::Output output =
            front::compile_text({.source = dsl::Source(path.filename().string(), read_file(path)),
                                 .buffers = {},
                                 .params = {},
                                 .mask_mod = ""});
        CHECK_MESSAGE(!output.rendered.empty(), "the program has nothing wrong");
        CHECK(output.program.has_value() == !dsl::has_errors(output.diagnostics));
        path.replace_extension(".expected");
        if (update)
            std::ofstream(path, std::ios::binary) << output.rendered;
        else
            CHECK(output.rendered == read_file(path));
    }
}

TEST_CASE("every golden has its program") {
    for (const auto& entry : std::filesystem::directory_iterator(kGoldens)) {
        std::filesystem::path path = entry.path();
        if (path.extension() != ".expected") continue;
        CAPTURE(path.filename().string());
        CHECK(std::filesystem::exists(path.replace_extension(".flex")));
    }
}
