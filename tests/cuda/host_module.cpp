#include "host_module.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <doctest/doctest.h>

namespace flexc::test {

namespace {

std::string read_file(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

} // namespace

HostModule::HostModule(const std::string& text, const std::string& mod_text) {
    std::string pattern = (std::filesystem::temp_directory_path() / "flexc-host-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    std::ofstream(folder_ + "/module.cpp") << "#include \"cuda_on_host.h\"\n" << text;
    if (!mod_text.empty()) std::ofstream(folder_ + "/mod.cuh") << mod_text;
    const char* compiler = std::getenv("CXX");
    const std::string source = FLEXC_SOURCE_DIR;
    const std::string command = std::string(compiler == nullptr ? "c++" : compiler) +
                                " -std=c++17 -O0 -w -fwrapv -ffp-contract=off -shared -fPIC -I '" +
                                source + "/tests/cuda/shim' -I '" + source + "/templates' -I '" +
                                folder_ + "' -o '" + folder_ + "/module.so' '" + folder_ +
                                "/module.cpp' > '" + folder_ + "/log' 2>&1";
    const int status = std::system(command.c_str());
    REQUIRE_MESSAGE(status == 0, read_file(folder_ + "/log").substr(0, 4000));
    handle_ = ::dlopen((folder_ + "/module.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(handle_ != nullptr, ::dlerror());
}

HostModule::~HostModule() {
    if (handle_ != nullptr) ::dlclose(handle_);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
}

void* HostModule::symbol(const std::string& name) const {
    void* found = ::dlsym(handle_, name.c_str());
    REQUIRE_MESSAGE(found != nullptr, name);
    return found;
}

} // namespace flexc::test
