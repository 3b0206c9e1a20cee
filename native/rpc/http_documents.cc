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

void HttpDocuments::SetList(const std::string& path, HttpListDocument list) {
  const std::lock_guard<std::mutex> lock(mutex_);
  lists_.erase(path);
  lists_.emplace(path, std::move(list));
}

void HttpDocuments::ChangeList(const std::string& path, HttpListDocument::Head head,
                               HttpListDocument::NumberedItems items) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto list = lists_.find(path);
  if (list != lists_.end()) list->second.Change(std::move(head), std::move(items));
}

bool HttpDocuments::Has(const std::string& path) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return documents_.count(path) > 0 || lists_.count(path) > 0;
}

std::shared_ptr<const HttpDocument> HttpDocuments::Find(const std::string& path) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = documents_.find(path); found != documents_.end()) return found->second;
  const auto list = lists_.find(path);
  return list == lists_.end() ? nullptr : list->second.Read();
}

}  // namespace millpond::rpc
