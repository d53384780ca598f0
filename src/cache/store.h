// The disk cache: one checksummed file per key in a private folder, shared by any number of
// processes. It never fails: whatever goes wrong is a miss, and one warning when the user can act.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "cache/digest.h"
#include "cache/entry_format.h"
#include "flexc/options.h"
#include "support/log.h"

namespace flexc::cache {

struct StoreStatistics {
    std::uint64_t hits = 0, misses = 0, corrupt = 0, published = 0, evicted = 0; // by this process
    std::uint64_t entries = 0, bytes = 0;                                        // on disk now
    std::string directory; // empty when there is no cache
};

class Folder;

// Fixed in production; tests shorten the times.
struct StoreSettings {
    std::chrono::seconds stale_temporary = std::chrono::hours(1);
    std::chrono::seconds touch_interval = std::chrono::hours(24);
    std::chrono::seconds scan_interval = std::chrono::hours(1);
    bool hard_links = true; // off: publish as on a file system that has none
};

// All members may be called from many threads, and in a child after fork: no lock is held, no file
// stays open, and the folder is read anew each time.
class Store {
  public:
    // Never null. CacheOptions::disk = false gives a store that keeps nothing.
    static std::shared_ptr<Store> open(const CacheOptions& options,
                                       const StoreSettings& settings = {});

    // Loads from the pack, if there is one, else from the folder. Nothing unless the entry is
    // complete and was made for the same text. A damaged entry in the folder is removed, so that
    // the next publish can replace it.
    std::optional<Entry> load(const Key& key, const support::Log& log = {});
    // Keeps an existing entry, as another process has then made the same one.
    void publish(const Key& key, const Entry& entry, const support::Log& log = {});
    // Removes the entry, so that the next publish replaces it.
    void remove(const Key& key, const support::Log& log = {});
    // Removes a complete entry that its user cannot use, so that the next publish replaces it.
    void discard(const Key& key, const support::Log& log = {});

    StoreStatistics statistics(const support::Log& log = {});
    // Removes entries of every version, and nothing that is not ours. False if one would not go.
    bool clear(const support::Log& log = {});

    const std::string& directory() const { return directory_; } // empty when off

  private:
    Store(std::string directory, const CacheOptions& options, const StoreSettings& settings);
    void warn_once(const support::Log& log, const std::string& problem);
    std::optional<Folder> enter(bool create, const support::Log& log);
    std::optional<Entry> lookup(const Key& key, const support::Log& log);
    bool claim_measuring(std::uint64_t added);
    void make_room(const Folder& folder);

    const std::string directory_;
    const std::string pack_;
    const bool wanted_;
    const std::uint64_t max_bytes_;
    const StoreSettings settings_;

    std::atomic<bool> warned_ = false, checked_pack_ = false;
    std::atomic<std::uint64_t> hits_ = 0, misses_ = 0, corrupt_ = 0, published_ = 0, evicted_ = 0;
    // The believed size of the folder, and when it was last measured (steady clock, 0: never).
    std::atomic<std::uint64_t> believed_bytes_ = 0;
    std::atomic<std::int64_t> measured_at_ = 0;
};

// One store per folder and budget, so that its warning is given and its numbers are kept once.
class Stores {
  public:
    std::shared_ptr<Store> get(const CacheOptions& options);

  private:
    std::mutex mutex_;
    std::unordered_map<std::string, std::shared_ptr<Store>> stores_;
};

// CacheOptions::directory, else FLEXC_CACHE_DIR, else $XDG_CACHE_HOME/flexc, else ~/.cache/flexc;
// empty when none of them is set.
std::string cache_directory(const CacheOptions& options);

} // namespace flexc::cache
