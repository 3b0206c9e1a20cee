#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "native/rpc/http_document.h"
#include "native/rpc/http_list_document.h"

namespace millpond::rpc {

// The documents by their paths. The control plane replaces one, or an item of a list, when what it
// shows has changed, so that a request for it waits for no other thread.
//
// Thread: any, at once.
class HttpDocuments {
 public:
  void Set(const std::string& path, HttpDocument document);
  void Remove(const std::string& path);
  // A document of the same path comes first.
  void SetList(const std::string& path, HttpListDocument list);
  // Does nothing without such a list.
  void ChangeList(const std::string& path, HttpListDocument::Head head,
                  HttpListDocument::NumberedItems items);

  bool Has(const std::string& path) const;
  // Returns null if there is none.
  std::shared_ptr<const HttpDocument> Find(const std::string& path) const;

 private:
  // Held for a look-up or a replacement, and while a changed list is joined: 1,000 models take some
  // 20 µs.
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const HttpDocument>> documents_;
  mutable std::unordered_map<std::string, HttpListDocument> lists_;
};

}  // namespace millpond::rpc
