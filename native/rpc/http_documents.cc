#include "native/rpc/http_documents.h"

#include <utility>

namespace millpond::rpc {

void HttpDocuments::Set(const std::string& path, HttpDocument document) {
  // The former document is freed after the lock is.
  auto made = std::make_shared<const HttpDocument>(std::move(document));
  const std::lock_guard<std::mutex> lock(mutex_);
  documents_[path].swap(made);
}

void HttpDocuments::Remove(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  documents_.erase(path);
}

std::shared_ptr<const HttpDocument> HttpDocuments::Find(const std::string& path) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = documents_.find(path);
  return found == documents_.end() ? nullptr : found->second;
}

}  // namespace millpond::rpc
