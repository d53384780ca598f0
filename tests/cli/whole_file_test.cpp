#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "flexc/whole_file.h"

using namespace flexc;
namespace fs = std::filesystem;

namespace {

std::string text_of(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

} // namespace

TEST_CASE("a command that is killed while it writes leaves the old file and nothing else") {
    std::string name = (fs::temp_directory_path() / "flexc-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    const fs::path folder = name, target = folder / "out";
    const int probe = ::open(name.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (probe >= 0) {
        ::close(probe);
        const std::string old_text = "old", new_text(64 << 20, 'n');
        for (int round = 0; round < 10; ++round) {
            CAPTURE(round);
            std::ofstream(target, std::ios::trunc) << old_text;
            const pid_t child = ::fork();
            if (child == 0) {
                const std::string_view part = new_text;
                for (;;)
                    if (!cli::write_whole_file(target.string(), {&part, 1})) ::_exit(1);
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1 + 3 * round));
            ::kill(child, SIGKILL);
            int status = 0;
            ::waitpid(child, &status, 0);
            CHECK(WIFSIGNALED(status));
            const std::string found = text_of(target);
            CHECK((found == old_text || found == new_text));
            // Its name for the moment of the rename is the only thing that could stay.
            CHECK(std::distance(fs::directory_iterator(folder), {}) == 1);
        }
    }
    fs::remove_all(folder);
}
