#include "native/base/regular_files.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/native/temporary_directory.h"

namespace millpond::base {
namespace {

namespace fs = std::filesystem;

class RegularFiles : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return root_ / name; }
  void MakeFile(const std::string& name) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << "bytes";
  }
  void MakePipe(const std::string& name) const {
    fs::create_directories((root_ / name).parent_path());
    ASSERT_EQ(mkfifo(Path(name).c_str(), 0600), 0);
  }
  void ExpectRefused(const Status& status, const std::string& in_message) const {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_NE(status.message().find(in_message), std::string::npos) << status.message();
  }

  const ::millpond::testing::TemporaryDirectory directory_;
  const fs::path root_ = directory_.path();
};

TEST_F(RegularFiles, FilesDirectoriesAndLinksToThemAreRead) {
  MakeFile("saved_model.pb");
  MakeFile("variables/variables.index");
  fs::create_symlink("saved_model.pb", root_ / "link");
  fs::create_directory_symlink("variables", root_ / "assets");
  fs::create_directory_symlink("..", root_ / "variables" / "circle");
  fs::create_symlink("nothing", root_ / "dangling");
  EXPECT_TRUE(CheckRegularFiles(root_).ok());
  EXPECT_TRUE(CheckRegularFile(Path("link")).ok());
}

TEST_F(RegularFiles, MissingFilesAreLeftToTheirReader) {
  EXPECT_TRUE(CheckRegularFile(Path("nothing")).ok());
  EXPECT_TRUE(CheckRegularFiles(Path("nothing")).ok());
}

TEST_F(RegularFiles, APipeIsRefusedWithoutWaitingForItsWriter) {
  MakePipe("saved_model.pb");
  ExpectRefused(CheckRegularFile(Path("saved_model.pb")), "saved_model.pb is a named pipe");
  ExpectRefused(CheckRegularFiles(root_), "saved_model.pb is a named pipe");
}

TEST_F(RegularFiles, APipeIsRefusedAtAnyDepthAndBehindLinks) {
  MakePipe("assets/a/b/words.txt");
  ExpectRefused(CheckRegularFiles(root_), "assets/a/b/words.txt is a named pipe");
  fs::create_symlink(root_ / "assets/a/b/words.txt", root_ / "link");
  ExpectRefused(CheckRegularFile(Path("link")), "link is a named pipe");
}

TEST_F(RegularFiles, APipeIsRefusedInADirectoryThatIsLinked) {
  MakePipe("store/variables.index");
  fs::create_directory(root_ / "1");
  fs::create_directory_symlink(root_ / "store", root_ / "1" / "variables");
  ExpectRefused(CheckRegularFiles(Path("1")), "variables/variables.index is a named pipe");
}

TEST_F(RegularFiles, SocketsAndDevicesAreRefused) {
  ExpectRefused(CheckRegularFile("/dev/zero"), "is a device");
  const int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, Path("socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ExpectRefused(CheckRegularFiles(root_), "is a socket");
  close(descriptor);
}

}  // namespace
}  // namespace millpond::base
