// Generated CUDA text, compiled as host C++ and loaded into the test.
#pragma once

#include <memory>
#include <string>

namespace flexc::test {

class HostModule {
  public:
    // Fails the running test when the compiler refuses.
    // `mod_text` is what the templates that `text` includes find as mod.cuh.
    explicit HostModule(const std::string& text, const std::string& mod_text = "");
    HostModule(const HostModule&) = delete;
    HostModule& operator=(const HostModule&) = delete;
    ~HostModule();

    template <typename Function> Function* function(const std::string& name) const {
        return reinterpret_cast<Function*>(symbol(name));
    }

  private:
    void* symbol(const std::string& name) const;

    std::string folder_;
    void* handle_ = nullptr;
};

} // namespace flexc::test
