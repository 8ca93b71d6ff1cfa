/* The folder of pack cache files: what is kept in it and what is thrown away. */
#ifndef DSE_DEVICE_PACK_FOLDER_H
#define DSE_DEVICE_PACK_FOLDER_H

/* Packs that stay besides the one in use. The help of --pack-cache says how many that makes. */
#define DSE_PACKS_KEPT 4

/* Marks a pack as used now. */
void dse_pack_touch(int fd);
/* Removes temporary files that no process holds locked, left by packings that were killed, and all packs but `in_use`
 * (the name of a file, existing or not) and the DSE_PACKS_KEPT that were used last. Other files are none of its
 * business. What cannot be removed stays. */
void dse_pack_folder_tidy(const char *folder, const char *in_use);

#endif
