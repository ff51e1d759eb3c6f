# fish completion for apptainer and singularity, links to berth: that of berth apptainer.
complete -c apptainer -w 'berth apptainer'
complete -c singularity -w 'berth apptainer'
