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

void HttpDocuments::SetListFrame(const std::string& path, HttpListDocument::Frame frame) {
  const std::lock_guard<std::mutex> lock(mutex_);
  lists_[path].SetFrame(std::move(frame));
}

void HttpDocuments::SetListItems(const std::string& path, std::vector<std::string> items) {
  const std::lock_guard<std::mutex> lock(mutex_);
  lists_[path].SetItems(std::move(items));
}

void HttpDocuments::SetListItem(const std::string& path, size_t index, std::string item) {
  const std::lock_guard<std::mutex> lock(mutex_);
  lists_[path].SetItem(index, std::move(item));
}

bool HttpDocuments::Has(const std::string& path) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (documents_.count(path) > 0) return true;
  const auto list = lists_.find(path);
  return list != lists_.end() && list->second.has_frame();
}

std::shared_ptr<const HttpDocument> HttpDocuments::Find(const std::string& path) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = documents_.find(path); found != documents_.end()) return found->second;
  const auto list = lists_.find(path);
  return list == lists_.end() ? nullptr : list->second.Read();
}

}  // namespace millpond::rpc
