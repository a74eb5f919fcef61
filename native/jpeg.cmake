# Finds libjpeg-turbo for a target. Its static library is preferred: a wheel then needs no other file. Its names are
# hidden, since a process may have another libjpeg, such as Pillow's; and some static libraries can be linked into a
# module only so. Without the library the build goes on, and penstock.images names what is missing.
function(penstock_link_jpeg target scope)
  find_path(PENSTOCK_JPEG_INCLUDE jpeglib.h)
  find_library(PENSTOCK_JPEG_LIBRARY NAMES libjpeg.a jpeg-static jpeg)
  if(NOT PENSTOCK_JPEG_INCLUDE OR NOT PENSTOCK_JPEG_LIBRARY)
    message(WARNING "libjpeg-turbo was not found: penstock.images will not decode JPEGs natively")
    return()
  endif()
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_INCLUDES ${PENSTOCK_JPEG_INCLUDE})
  set(CMAKE_REQUIRED_LIBRARIES ${PENSTOCK_JPEG_LIBRARY})
  set(CMAKE_REQUIRED_FLAGS "-fPIC -shared")
  if(NOT APPLE)
    set(hidden "LINKER:--exclude-libs,libjpeg.a")
  endif()
  set(CMAKE_REQUIRED_LINK_OPTIONS ${hidden})
  check_cxx_source_compiles("
    #include <cstddef>
    #include <cstdio>
    #include <jpeglib.h>
    void decode(j_decompress_ptr file, JSAMPARRAY lines, JDIMENSION* first) {
      jpeg_create_decompress(file);
      jpeg_save_markers(file, JPEG_APP0, 1);
      jpeg_read_header(file, TRUE);
      file->out_color_space = JCS_EXT_RGBX;
      jpeg_start_decompress(file);
      jpeg_crop_scanline(file, first, first);
      jpeg_skip_scanlines(file, 1);
      jpeg_read_scanlines(file, lines, 1);
      jpeg_destroy_decompress(file);
    }
    int main() { return 0; }" PENSTOCK_JPEG_IS_TURBO)
  if(NOT PENSTOCK_JPEG_IS_TURBO)
    message(WARNING "${PENSTOCK_JPEG_LIBRARY} is no libjpeg-turbo that can be linked: penstock.images will not decode "
                    "JPEGs natively")
    return()
  endif()
  target_compile_definitions(${target} ${scope} PENSTOCK_HAS_JPEG)
  target_include_directories(${target} ${scope} ${PENSTOCK_JPEG_INCLUDE})
  target_link_libraries(${target} ${scope} ${PENSTOCK_JPEG_LIBRARY})
  target_link_options(${target} ${scope} ${hidden})
endfunction()
