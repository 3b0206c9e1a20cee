#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace millpond::rpc {

// An answer that is made before it is asked for: JSON that no cache may keep.
struct HttpDocument {
  int status = 200;
  std::string body;
};

// The documents by their paths. The control plane replaces one when what it shows has changed, so
// that a request for it waits for no other thread.
//
// Thread: any, at once.
class HttpDocuments {
 public:
  void Set(const std::string& path, HttpDocument document);
  void Remove(const std::string& path);
  // Returns null if there is none.
  std::shared_ptr<const HttpDocument> Find(const std::string& path) const;

 private:
  // Held for a look-up or a replacement.
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const HttpDocument>> documents_;
};

}  // namespace millpond::rpc
