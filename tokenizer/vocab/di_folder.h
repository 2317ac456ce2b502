/*
 * di_folder.h - which model a folder in Hugging Face's form holds.
 */

#ifndef DI_FOLDER_H
#define DI_FOLDER_H

#include <stdint.h>

#include "../di_err.h"

/* SHA-256, truncated to 16 bytes, over what makes one folder's model differ
 * from another's: config.json and tokenizer.json; of each *.safetensors in
 * it, in the order of their names, the name, the size, the header (every
 * tensor's name, type, shape and place) and 64 samples spread evenly over the
 * rest.  As with di_gguf_fingerprint(), two trainings of one model often
 * differ in the weights alone, which nobody wants to read whole.
 * DI_OK; DI_EUNSUPPORTED: it holds no *.safetensors, so no model; DI_EIO,
 * DI_EFORMAT (err names the file), DI_ENOMEM.  Reads the headers, some MB at
 * most, and 64 pages a file. */
int di_folder_fingerprint(const char *folder, uint8_t out[16], di_err_t *err);

#endif
